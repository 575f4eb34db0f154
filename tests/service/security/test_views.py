"""Who may look at what over HTTP, and who may note what: each verb, with each scope; and nobody is told of others."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq.journal.changes import QueueChange, change_key
from jobq.journal.observing import CHANGES_KEPT
from jobq.journal.presence import WorkerPresence
from jobq.lease.store import Request
from jobq.servable import PAGE_BYTES
from jobq.server.tokens import Scope
from jobq.server.views import VERBS
from jobq.settings import Settings
from jobq.spec import resolve
from tests.cli.conftest import Jobq
from tests.service.server import HttpServer, running

_SCOPES = tuple(map(str, Scope))
_GIVEN_BY = {"watch": {"watch", "view", "read"}, "view": {"view", "read"}, "operate": {"operate", "admin"}}
_CHANGE = QueueChange(at=1.7e9, by="somebody else", did="cancel", said="secret words").encode()
_NOTE = {"key": "0000000060", "value": "{}", "replaces": True}
_WORKER = WorkerPresence(
    holder="h:1", host="h", version="1", slots=1, busy=0, state="working", started=1.7e9
).encode()  # fmt: skip
_PUT_CHANGE = {"kind": "change", "key": change_key(1.7e9, "zz"), "value": _CHANGE, "replaces": True}
# A body that is good, for each verb; and the scope that it wants.
_BODIES: dict[str, dict[str, Any]] = {
    "task": {"id": "a"},
    "output": {"id": "a"},
    "dead_groups": {"grouping": ["exit"]},
    "notes": {"kind": "depth"},
}
_LOOKS = [(f"views/{verb}", _BODIES.get(verb, {}), str(each.scope)) for verb, each in VERBS.items()]
_CALLS: list[tuple[str, dict[str, Any], str]] = [
    *_LOOKS,
    ("views/count", {"wanted": {"states": ["dead"]}}, "watch"),
    ("views/count", {"wanted": {"text": "*secret*"}}, "view"),
    ("views/count", {"wanted": {"states": ["dead"], "id_part": "a"}}, "view"),
    ("views/notes", {"kind": "ended"}, "watch"),
    ("views/notes", {"kind": "ended-of-hour"}, "watch"),
    ("views/notes", {"kind": "depth-of-hour"}, "watch"),
    ("views/notes", {"kind": "worker"}, "view"),
    ("views/notes", {"kind": "change"}, "view"),
    ("notes/put", {"kind": "worker", **_NOTE, "value": _WORKER}, "lease"),
    ("notes/put", {"kind": "depth", **_NOTE}, "lease"),
    ("notes/put", _PUT_CHANGE, "operate"),
    ("notes/page", {"kind": "worker"}, "lease"),
    ("notes/drop", {"kind": "worker", "keys": ["a"]}, "lease"),
    ("notes/ended", {"since": 0.0, "until": 1.0}, "lease"),
    ("notes/line", {}, "lease"),
]
TOKENS: dict[str, str] = {}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("views"))


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[HttpServer]:
    jobq, spec = Jobq(place), f"sqlite://{place}/jobs.db/demo"
    for name in ("demo", "other", "third"):
        jobq(f"sqlite://{place}/jobs.db/{name}", "create")

    def made(*options: str) -> str:
        return jobq("serve", "token", "create", spec, *options).out.strip()

    for scope in _SCOPES:
        TOKENS[scope] = made("--scope", scope)
    TOKENS["of other"] = made(*(word for scope in _SCOPES for word in ("--scope", scope)), "--only-queue", "other")
    TOKENS["of two"] = made("--scope", "watch", "--only-queue", "other", "--only-queue", "third")
    TOKENS["operator"] = made("--scope", "operate", "--scope", "view", "--scope", "lease")
    TOKENS["chief"] = made("--scope", "admin", "--scope", "view")
    TOKENS["colleague"] = made("--scope", "operate", "--scope", "view", "--scope", "lease")
    with running(spec, place, is_open=False) as found:
        yield found


def _ask(server: HttpServer, who: str, path: str, body: Any, queue: str = "demo", status: int | None = None) -> Any:
    found, answer = server.ask("POST", f"/api/queues/{queue}/{path}", body, token=TOKENS[who])
    assert status in (None, found), (who, path, found, answer)
    return answer if status else found


def test_the_table_is_whole() -> None:
    """No verb is left out here, as none is of what a client can ask."""
    assert {path for path, _, _ in _LOOKS} == {f"views/{verb}" for verb in VERBS}
    assert {each.scope for each in VERBS.values()} == {Scope.WATCH, Scope.VIEW}


@pytest.mark.parametrize("scope", _SCOPES)
@pytest.mark.parametrize(("path", "body", "wanted"), _CALLS, ids=lambda each: each if isinstance(each, str) else "")
def test_each_verb_wants_its_scope(server: HttpServer, path: str, body: Any, wanted: str, scope: str) -> None:
    if body == _PUT_CHANGE:  # nobody changes what another one has noted
        body = body | {"key": change_key(1.7e9, scope)}
    status = _ask(server, scope, path, body)
    if scope in _GIVEN_BY.get(wanted, {wanted}):
        assert status in (200, 202), "it is a good request"
    else:
        assert status == 403


@pytest.mark.parametrize(("path", "body", "wanted"), _CALLS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_token_of_another_queue_sees_nothing_here(server: HttpServer, path: str, body: Any, wanted: str) -> None:
    del wanted
    assert _ask(server, "of other", path, body) == 403
    assert _ask(server, "of other", path, body, "other") in (200, 202)
    assert server.ask("POST", f"/api/queues/demo/{path}", body)[0] in (401, 429)  # who guesses is slowed down
    assert server.ask("POST", f"/api/queues/demo/{path}", body, token="jobq_0_x")[0] in (401, 429)


@pytest.mark.parametrize("scope", _SCOPES)
def test_queues_are_listed_as_far_as_they_may_be_watched(server: HttpServer, scope: str) -> None:
    status, found = server.ask("POST", "/api/views/queues", {}, token=TOKENS[scope])
    assert status == 200
    names = [row["name"] for row in found["rows"]]
    assert names == (["demo", "other", "third"] if scope in ("watch", "view", "read") else [])


def test_who_may_only_watch_is_told_since_when_a_queue_is_paused_and_no_words(server: HttpServer) -> None:
    pause = {"by": "ada@node-7", "reason": "secret words"}
    assert server.ask("PUT", "/api/queues/third/pause", pause, token=TOKENS["operate"])[0] == 202
    try:
        for who in ("watch", "view", "of two"):
            _, line = server.ask("POST", "/api/queues/third/views/queue", {}, token=TOKENS[who])
            _, page = server.ask("POST", "/api/views/queues", {}, token=TOKENS[who])
            (listed,) = [row for row in page["rows"] if row["name"] == "third"]
            _, counts = server.ask("GET", "/api/queues/third", token=TOKENS[who])
            for found in (line, listed, counts):
                mark = found["paused"]
                assert mark["at"] > 1.7e9
                told = ("ada@node-7", "secret words") if who == "view" else ("", "")
                assert (mark["by"], mark["reason"]) == told, (who, found)
    finally:
        assert server.ask("DELETE", "/api/queues/third/pause", token=TOKENS["operate"])[0] == 202


def test_no_place_in_the_list_names_a_queue_of_others(server: HttpServer) -> None:
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        body = {"after": after, "limit": 1, "budget_seconds": 0}
        status, found = server.ask("POST", "/api/views/queues", body, token=TOKENS["of two"])
        assert status == 200
        names += [row["name"] for row in found["rows"]]
        after = found.get("after")
        assert "demo" not in json.dumps(found)
    assert names == ["other", "third"]


@pytest.mark.parametrize("budget", [-1, 2.1, 1e300, "1", None, True])
def test_no_look_takes_longer_than_two_seconds(server: HttpServer, budget: object) -> None:
    for path in ("views/queue", "views/tasks", "views/count"):
        assert _ask(server, "view", path, {"budget_seconds": budget}) == 400
    assert server.ask("POST", "/api/views/queues", {"budget_seconds": budget}, token=TOKENS["view"])[0] == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("views/tasks", {"limit": 0}),
        ("views/tasks", {"limit": 501}),
        ("views/tasks", {"wanted": {"states": ["asleep"]}}),
        ("views/tasks", {"wanted": {"text": "x" * 1001}}),
        ("views/tasks", {"wanted": {"color": "blue"}}),
        ("views/tasks", {"after": "x"}),
        ("views/count", {"most": 10_001}),
        ("views/notes", {"kind": "secrets"}),
        ("views/notes", {"kind": "depth\n"}),
        ("views/dead_groups", {"grouping": ["color"]}),
        ("views/task", {"id": 3}),
    ],
)
def test_what_cannot_be_asked_for_is_refused(server: HttpServer, path: str, body: Any) -> None:
    assert _ask(server, "read", path, body) == 400


def test_who_changed_something_is_told_to_administrators_and_to_himself(server: HttpServer) -> None:
    """Named after the token that has noted it, from where it came; to others its place in the list is blank."""
    key = change_key(time.time(), "own")
    _ask(server, "operator", "notes/put", _PUT_CHANGE | {"key": key}, status=202)
    id_ = TOKENS["operator"].split("_")[1]

    def seen(who: str, path: str) -> QueueChange | None:
        notes = _ask(server, who, path, {"kind": "change"}, status=200)["notes"]
        (note,) = [each for each in notes if each["key"] == key]
        assert bool(note["value"]) == (who in ("operator", "chief")), (who, path)
        return QueueChange.decode(note["value"])

    own = seen("operator", "views/notes")
    assert own is not None
    assert (own.by, own.address, own.said) == (f"{id_} somebody else", "127.0.0.1", "secret words")
    assert seen("chief", "views/notes") == own
    for who in ("view", "read", "colleague"):
        assert seen(who, "views/notes") is None
    assert seen("operator", "notes/page") == own
    for who in ("lease", "colleague"):
        assert seen(who, "notes/page") is None


def test_nobody_else_changes_a_note_of_what_was_changed(server: HttpServer) -> None:
    """Nor deletes it, nor makes one in the name of another token; however many there are."""
    key = change_key(time.time(), "mine")
    done = QueueChange(at=1.7e9, by="somebody", did="purge", state="done").encode()
    for number in range(30):
        _ask(server, "colleague", "notes/put", _PUT_CHANGE | {"key": change_key(time.time(), f"n{number}")}, status=202)
    _ask(server, "operator", "notes/put", _PUT_CHANGE | {"key": key}, status=202)
    assert _ask(server, "colleague", "notes/put", _PUT_CHANGE | {"key": key, "value": done}) == 403
    assert _ask(server, "lease", "notes/put", _PUT_CHANGE | {"key": key}) == 403
    assert _ask(server, "operator", "notes/put", _PUT_CHANGE | {"key": key, "value": done}) == 202, "its own it ends"
    for who in ("lease", "colleague", "operator"):
        assert _ask(server, who, "notes/drop", {"kind": "change", "keys": [key]}) == 403
        old = change_key(time.time() - CHANGES_KEPT - 60, "x")
        assert _ask(server, who, "notes/drop", {"kind": "change", "keys": [old, key]}) == 403
        assert _ask(server, who, "notes/drop", {"kind": "change", "keys": [old]}) == 202
    other = TOKENS["colleague"].split("_")[1]
    forged = QueueChange(at=1.7e9, by=f"{other} colleague", did="purge").encode()
    forged_key = change_key(time.time(), "forged")
    _ask(server, "operator", "notes/put", _PUT_CHANGE | {"key": forged_key, "value": forged}, status=202)
    notes = _ask(server, "operator", "views/notes", {"kind": "change"}, status=200)["notes"]
    (found,) = [QueueChange.decode(each["value"]) for each in notes if each["key"] == forged_key]
    assert found is not None
    assert found.by.startswith(TOKENS["operator"].split("_")[1])
    for value in ("{}", "x", "", "[1]"):
        assert _ask(server, "operator", "notes/put", _PUT_CHANGE | {"key": change_key(0.0), "value": value}) == 400
    tomorrow = change_key(time.time() + 2 * 86400, "first")  # it would stand before all others, and never be too old
    assert _ask(server, "operator", "notes/put", _PUT_CHANGE | {"key": tomorrow}) == 400
    for wrong in ("v", "ffffffff", "ffffffff-~", "ffffffff-\U0010ffff", "\0"):
        assert _ask(server, "operator", "notes/put", _PUT_CHANGE | {"key": wrong}) == 400


async def test_a_page_of_leases_is_of_a_size_that_arrives(server: HttpServer) -> None:
    """A cursor may be large, and written six times as long: then a page has fewer, and the next one goes on."""
    cursor = "\x01" * 60_000
    count = PAGE_BYTES // (6 * len(cursor)) + 3
    async with resolve(server.spec.replace("/demo", "/third"), Settings(home=server.log.parent)) as backend:
        leases = backend.leases  # type: ignore[attr-defined]
        for number in range(count):
            grant = await leases.acquire(
                Request(name=f"n{number:03}", key="k", holder="h", ttl=leases.limits.default_ttl)
            )
            await leases.save(grant, cursor, 1)
    names: list[str] = []
    pages = 0
    after: str | None = ""
    while after is not None:
        body = {"after": after, "limit": 500, "budget_seconds": 2.0}
        found = _ask(server, "view", "views/leases", body, "third", status=200)
        assert len(json.dumps(found)) <= PAGE_BYTES + 2000 * len(found["rows"])
        names += [row["name"] for row in found["rows"]]
        after, pages = found.get("after"), pages + 1
    assert names == [f"n{number:03}" for number in range(count)]
    assert pages > 1


@pytest.mark.parametrize("who", [*_SCOPES, "of two"])
def test_a_token_is_told_what_it_permits(server: HttpServer, who: str) -> None:
    status, found = server.ask("GET", "/api/token", token=TOKENS[who])
    assert status == 200
    scopes, queues = (["watch"], ["other", "third"]) if who == "of two" else ([who], ["*"])
    assert (found["id"], found["scopes"], found["queues"]) == (TOKENS[who].split("_")[1], scopes, queues)
    assert TOKENS[who].split("_", 2)[2] not in json.dumps(found)


def test_nobody_is_told_without_a_token(server: HttpServer, tmp_path: Path) -> None:
    assert server.ask("GET", "/api/token")[0] == 401
    with running(f"sqlite://{tmp_path}/q.db/demo", tmp_path) as is_open:
        status, found = is_open.ask("GET", "/api/token")
        assert (status, found["id"], found["queues"], set(found["scopes"])) == (200, "-", ["*"], set(_SCOPES))
