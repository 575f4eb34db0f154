"""architecture 3: from a spec to a backend, through real entry points."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from jobq.errors import BackendMissing, ConfigurationError, InvalidSpec
from jobq.settings import Settings
from jobq.spec import parse, parse_place, resolve, resolve_views


@pytest.mark.parametrize(
    ("text", "scheme", "location", "queue"),
    [
        ("demo", "embedded", "", "demo"),
        ("acct/q", "storage-queue", "acct", "q"),
        ("sb://ns/q", "sb", "ns", "q"),
        ("sqlite:///abs/jobs.db/q", "sqlite", "/abs/jobs.db", "q"),
        ("sqlite://rel/jobs.db/q", "sqlite", "rel/jobs.db", "q"),
        ("postgresql://user@host/db/q", "postgresql", "user@host/db", "q"),
        ("http://host:8000/q", "http", "host:8000", "q"),
        ("memory://name/q", "memory", "name", "q"),
    ],
)
def test_takes_every_form_apart_and_shows_it_again(text: str, scheme: str, location: str, queue: str) -> None:
    spec = parse(text)
    assert (spec.scheme, spec.location, spec.queue) == (scheme, location, queue)
    assert str(spec) == text


@pytest.mark.parametrize(
    "text", ["", "/", "acct/", "sqlite://", "a b", "sqlite:///x.db/", "../q/..", "q" * 64, "http://[::1/q"]
)
def test_refuses_what_is_no_spec(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("./rel.db/demo", "did you mean sqlite://rel.db/demo?"),
        ("rel.db/demo", "did you mean sqlite://rel.db/demo?"),
        ("../rel.db/demo", "did you mean sqlite://../rel.db/demo?"),
        ("/abs/jobs.db/demo", "did you mean sqlite:///abs/jobs.db/demo?"),
        ("sqlite:rel.db/demo", "did you mean sqlite://rel.db/demo?"),
        ("sqlite:/abs.db/demo", "did you mean sqlite:///abs.db/demo?"),
        ("~/q", "did you mean q (a queue of this machine), or sqlite://~/jobs.db/q (one in a file)?"),
        ("/root/q", "did you mean q (a queue of this machine), or sqlite:///root/jobs.db/q (one in a file)?"),
        ("/demo", "did you mean demo (a queue of this machine), or sqlite:///jobs.db/demo (one in a file)?"),
        ("jobs.db", "a queue in that file is sqlite://jobs.db/demo"),
        ("./data/jobs.sqlite3", "a queue in that file is sqlite://./data/jobs.sqlite3/demo"),
        ("https://acct.queue.core.windows.net/jobs", "did you mean acct/jobs?"),
        ("acct.queue.core.windows.net/jobs", "did you mean acct/jobs?"),
        ("https://space.servicebus.windows.net/jobs", "did you mean sb://space/jobs?"),
        ("sb:/space/jobs", "did you mean sb://space/jobs?"),
        ("http:host:8000/jobs", "did you mean http://host:8000/jobs?"),
        ("http://127.0.0.1:8000", "its last part is the queue, as in http://127.0.0.1:8000/demo"),
        ("sb://space/", "its last part is the queue, as in sb://space/demo"),
        ("sqlite:///jobs.db", "its last part is the queue, as in sqlite:///jobs.db/demo"),
        ("sqlite://jobs.db", "its last part is the queue, as in sqlite://jobs.db/demo"),
        ("sqlite://data/jobs.db", "its last part is the queue, as in sqlite://data/jobs.db/demo"),
    ],
)
def test_what_was_probably_meant(text: str, meant: str) -> None:
    """A spec that looks like something else is never a queue elsewhere."""
    with pytest.raises(InvalidSpec) as caught:
        parse(text)
    assert str(caught.value).endswith(meant)
    if meant.startswith("did you mean sqlite://"):
        parse(meant.removeprefix("did you mean ").removesuffix("?"))


@pytest.mark.parametrize(
    "text",
    ["demo", "demo.v2", "acct/q", "sqlite://jobs.db/q", "sqlite:///data/q.db/x.db", "https://jobs.example.org/q"],
)
def test_nothing_else_was_meant(text: str) -> None:
    assert str(parse(text)) == text


def test_a_password_is_refused_and_never_shown() -> None:
    for scheme in ("postgresql", "Postgres"):
        with pytest.raises(InvalidSpec, match=r"~/.pgpass, or into a file named by PGPASSFILE$") as caught:
            parse(f"{scheme}://user:hunter2@host/db/q")
        assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidSpec, match=r"put it into JOBQ_HTTP_TOKEN$") as caught:
        parse("https://user:hunter2@host/q")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["AccountName=x;AccountKey=canary", "sb://ns/q?sig=canary", "demo?password=canary", "http:me:canary@h/q?"]
)
def test_what_may_be_a_secret_is_not_repeated(text: str) -> None:
    """rules.md 3, A5."""
    with pytest.raises(InvalidSpec) as caught:
        parse(text)
    assert "canary" not in str(caught.value)


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(BackendMissing, match=r"ftp://.*known here: .*sqlite:///FILE.db/QUEUE") as caught:
        resolve("ftp://host/q", Settings())
    assert "QUEUE (embedded)" in str(caught.value)


def register(folder: Path, name: str, value: str) -> None:
    """Install a distribution that registers a backend, as a third party's package would."""
    information = folder / "third_party-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[jobq.backends]\n{name} = {value}\n")


def test_a_third_party_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(tmp_path, "mine", "third_party_queue:connect")
    (tmp_path / "third_party_queue.py").write_text(
        "def connect(spec, settings):\n    return ('connected', spec.queue)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found: object = resolve("mine://somewhere/q", Settings())
    assert found == ("connected", "q")
    sys.modules.pop("third_party_queue")


def test_a_third_party_takes_no_place_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(tmp_path, "memory", "third_party_queue:connect")
    monkeypatch.syspath_prepend(tmp_path)
    assert type(resolve("memory://somewhere/q", Settings())).__module__.startswith("jobq_memory")


def test_of_what_is_installed_nothing_is_read_for_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read what each of a hundred packages registers took longer than the rest of a command."""
    monkeypatch.setattr(importlib.metadata, "entry_points", None)
    assert resolve("memory://somewhere/q", Settings()).name == "q"


def test_a_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "jobq_postgres"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(BackendMissing, match=r"'asyncpg'.*pip install 'jobq\[postgres\]'"):
        resolve("postgresql://me@host/db/q", Settings())


@pytest.mark.parametrize(
    ("text", "scheme", "location", "queue"),
    [
        ("", "embedded", "", ""),
        ("demo", "embedded", "", "demo"),
        ("sqlite:///data/jobs.db", "sqlite", "/data/jobs.db", ""),
        ("sqlite://jobs.db", "sqlite", "jobs.db", ""),
        ("sqlite:///data/jobs.db/demo", "sqlite", "/data/jobs.db", "demo"),
        ("sqlite:///data/jobs.db/demo.db", "sqlite", "/data/jobs.db", "demo.db"),
        ("postgresql://me@host/work", "postgresql", "me@host/work", ""),
        ("postgres://host:5433/work?sslmode=require", "postgres", "host:5433/work?sslmode=require", ""),
        ("postgresql://host/work?sslmode=require/demo", "postgresql", "host/work?sslmode=require", "demo"),
        ("postgresql://host/work/demo", "postgresql", "host/work", "demo"),
        ("memory://here", "memory", "here", ""),
        ("memory://here/demo", "memory", "here", "demo"),
    ],
)
def test_a_place_is_named_with_or_without_a_queue(text: str, scheme: str, location: str, queue: str) -> None:
    place = parse_place(text)
    assert (place.scheme, place.location, place.queue) == (scheme, location, queue)


@pytest.mark.parametrize("text", ["postgresql://me:word@host/work", "sqlite://", "memory://", "./jobs.db", "a b"])
def test_what_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_place(text)
    assert "word@" not in str(refused.value)


def test_what_cannot_be_looked_at_as_a_whole_says_what_can() -> None:
    with pytest.raises(ConfigurationError, match="embedded, SQLite, PostgreSQL and Azure Storage queues can"):
        resolve_views("sb://namespace/myqueue", Settings())
