"""Foreign text in every field and every parameter: it is shown as it is, or as escapes; nothing of it runs."""

import subprocess
import sys
import time
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from jobq.backend import Backend
from jobq.formats.visible_text import visible
from jobq.journal.changes import QueueChange, change_key
from jobq.journal.notes import NoteKind
from jobq.journal.observations import observations_of
from jobq.journal.presence import WorkerPresence
from jobq.task import Budgets, Task
from tests.dashboard.conftest import Opened
from tests.dashboard.support import Dashboard
from tests.fork_server import forked

pytestmark = pytest.mark.check

_CORPUS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{ 81239 * 81239 }}{% raw %}",
    "<b hx-get=/ui/ hx-trigger=load>",
    "\u202egnirts\u2066",
    "a\u200bb\u0000c\u001b[31mred",
    "</pre></textarea><svg/onload=alert(1)>",
    "&lt;already&gt;&amp;",
)
_ALL = " ".join(_CORPUS)


@pytest.fixture(scope="module")
def ids(dashboard: Dashboard) -> dict[str, str]:
    """Tasks that say the corpus wherever a task can: in its words, its params, its output, its progress."""
    text = _ALL.replace("\u0000", "")  # no command line holds it
    words = [sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.argv[1].encode()); sys.exit(7)", text]
    script = f'{sys.executable} -m jobq progress 0.5 "$TEXT"; printf %s "$TEXT"; sleep 1000'
    tasks = [
        Task.new(argv=words, env={"X": "secret-value"}, params={"n": text[:200]}, budgets=Budgets(retries=0)),
        Task.new(command=script, env={"TEXT": text[:180]}),
    ]
    dead, running = dashboard.inside(lambda backend: backend.push(tasks))
    held = [sys.executable, "-m", "jobq", dashboard.spec, "lease", "run", "nightly", "--", "true"]
    forked.run(held, env=dashboard.environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
    return {"dead": dead, "running": running}


async def _noted(backend: Backend) -> None:
    """A worker and a change that say it, too."""
    notes = observations_of(backend)
    assert notes is not None
    text = _ALL.replace("\u0000", "")
    name = text[:200]
    worker = WorkerPresence(holder=name, host=name, version=name, slots=1, busy=0, state=text[:50], started=1.7e9)
    await notes.put(NoteKind.WORKER, worker.holder, worker.encode(), replaces=True)
    change = QueueChange(
        at=time.time(), by=text, address=text, did=text, ids=(text,), filter=text, state=text, said=_CORPUS[1]
    )
    await notes.put(NoteKind.CHANGE, change_key(change.at), change.encode(), replaces=True)


def test_each_field_is_shown_as_it_is_and_nothing_runs(
    dashboard: Dashboard, ids: dict[str, str], opened: Opened
) -> None:
    with dashboard.worker("-n", "2"):
        for state, task_id in ids.items():
            dashboard.wait_for(task_id, state)
        page = opened(f"/ui/q/demo/t/{ids['dead']}")
        shown = page.locator("pre.output").first.inner_text()
        for each in _CORPUS:
            assert visible(each.replace("\u0000", "")) in shown, each
        assert (
            page.locator(
                "main img, main svg:not(.bar), main script, [onerror], [onload], main [hx-trigger=load]"
            ).count()
            == 0
        )
        assert "secret-value" not in page.content()
        dashboard.inside(_noted)
        for path in ("tasks", "running", "dead?by=error", "", "batches", "leases", "hosts", "audit"):
            page.goto(f"{dashboard.url}/ui/q/demo/{path}".rstrip("/"))
            assert page.locator("main img, [onerror], [onload], main script, main b").count() == 0, path
            if path in ("hosts", "audit"):  # a page may show what another one has read a moment before
                expect(page.locator("main")).to_contain_text(visible(_CORPUS[1]), timeout=30_000)
                assert page.locator("main img, [onerror], [onload], main script, main b").count() == 0, path
            assert str(81239**2) not in page.locator("main").inner_text(), "a template was run"
        page.goto(f"{dashboard.url}/ui/q/demo/t/{ids['running']}")
        expect(page.locator("pre.output")).to_contain_text(_CORPUS[0], timeout=30_000)
        expect(page.locator(".facts")).to_contain_text(_CORPUS[0])
        assert "TEXT" in page.locator(".facts").inner_text()


@pytest.mark.parametrize("text", _CORPUS)
def test_each_parameter_is_given_back_as_text(opened: Opened, dashboard: Dashboard, text: str) -> None:
    page = opened("/ui/")
    value = quote(text, safe="")
    names = ("state", "text", "exit", "host", "reason", "error", "batch", "id", "age", "after", "had", "said", "span")
    query = "&".join(f"{name}={value}" for name in names)
    paths = (
        "",
        "q/demo/tasks",
        "q/demo/dead",
        "q/demo/leases",
        "q/demo/batches",
        "q/demo/running",
        "q/demo/hosts",
        "q/demo/audit",
        "q/demo",
        "hosts",
        "audit",
        "tokens",
        "enter",
        f"q/{value}",
        f"q/demo/t/{value}",
    )
    for path in paths:
        response = page.goto(
            f"{dashboard.url}/ui/{path}?{query}&by={value}&prefix={value}&all={value}&once={value}&next={value}"
        )
        assert response is not None
        assert response.status < 500, path
        assert page.locator("main img, [onerror], [onload], [onmouseover], main script, main b").count() == 0, path


def test_output_is_downloaded_as_text_alone(dashboard: Dashboard, ids: dict[str, str]) -> None:
    answer = dashboard.ask("GET", f"/ui/q/demo/t/{ids['dead']}/output?attempt=1", cookie=dashboard.cookie("view"))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert _CORPUS[0] in answer.text
