"""`jobq ui https://service/queue`: the dashboard of a service's queues, with the rights of one's token and no more."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from jobq.backend import Backend
from jobq.journal.changes import QueueChange
from jobq.journal.notes import NoteKind
from jobq.journal.observations import observations_of
from jobq.task import Budgets, Task
from tests.dashboard.conftest import Opened
from tests.dashboard.support import Dashboard
from tests.fork_server import forked
from tests.service.server import HttpServer, running

pytestmark = pytest.mark.check

_PAGES = (
    "/",
    "/hosts",
    "/audit",
    "/about",
    "/actions",
    "/q/demo",
    "/q/demo/tasks",
    "/q/demo/running",
    "/q/demo/dead",
    "/q/demo/batches",
    "/q/demo/leases",
    "/q/demo/hosts",
    "/q/demo/audit",
)
_HOSTILE = "<script>alert(1)</script> '\"> {{7*7}} \u202e \x1b[31m </pre>"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A service without a dashboard of its own, and what is in its queue."""
    folder = Path(tmp_path_factory.mktemp("over-http"))
    spec = f"sqlite://{folder}/jobs.db/demo"
    with running(spec, folder, is_open=False) as server:
        yield Dashboard(server, spec, folder)


class Entered:
    """One `jobq ui` of the service, and who is signed in there."""

    def __init__(self, service: Dashboard, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        said = json.loads(line)
        self.here = Dashboard(HttpServer("", service.folder), service.spec, service.folder)
        self.here.server.port = int(said["url"].split(":")[2].partition("/")[0])
        answer = self.here.ask("POST", "/ui/enter", fields={"once": said["link"].rpartition("once=")[2]})
        assert answer.status == 303
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def page(self, path: str) -> str:
        """Return a page, which must be there."""
        answer = self.here.ask("GET", f"/ui{path}", cookie=self.cookie)
        assert answer.status == 200, (path, answer.text)
        return answer.text

    def status(self, path: str) -> int:
        """Return the status of a page."""
        return self.here.ask("GET", f"/ui{path}", cookie=self.cookie).status

    def do(self, action: str, *ids: str) -> tuple[int, str]:
        """Choose an action and confirm it; return the status, and what is said."""
        form = self.here.ask("GET", "/ui/q/demo", cookie=self.cookie).form_token
        fields = [("form", form), ("action", action), *(("id", each) for each in ids)]
        asked = self.here.ask("POST", "/ui/q/demo/act", cookie=self.cookie, fields=fields)
        if asked.status != 200:
            return asked.status, asked.text
        fields.append(("proof", asked.hidden("proof")))
        done = self.here.ask("POST", "/ui/q/demo/do", cookie=self.cookie, fields=fields)
        if done.status != 303:
            return done.status, done.text
        return 200, self.here.ask("GET", done.headers["location"], cookie=self.cookie).text


@contextmanager
def _entered(service: Dashboard, token: str, *options: str) -> Iterator[Entered]:
    process = forked.Popen[str](
        [sys.executable, "-m", "jobq", "ui", f"{service.url}/demo", "--json", "--no-open", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=service.environment | {"JOBQ_HTTP_TOKEN": token, "JOBQ_HOME": str(service.folder / "elsewhere")},
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        try:
            yield Entered(service, process)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0


@pytest.fixture(scope="module")
def task_ids(service: Dashboard) -> dict[str, str]:
    """One that is done, one dead with hostile words, one that runs later, and one that waits."""
    words = [sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.argv[1].encode()); sys.exit(7)", _HOSTILE]
    (dead,) = service.inside(
        lambda backend: backend.push([Task.new(argv=words, env={"KEY": "a-secret"}, budgets=Budgets(retries=0))])
    )
    done = service.push("echo hello")
    with service.worker("-n", "1"):
        service.wait_for(dead, "dead")
        service.wait_for(done, "succeeded")
    return {"dead": dead, "done": done, "later": service.push("true", "--delay", "1h"), "ready": service.push("true")}


def test_all_pages_are_there(service: Dashboard, task_ids: dict[str, str]) -> None:
    """As whoever has the database sees them; hostile words are shown as they are, and no value of a variable."""
    with _entered(service, service.token("admin", "view", "enqueue")) as ui:
        for path in _PAGES:
            assert "That did not work" not in ui.page(path), path
        assert f"{service.url.removeprefix('http://')}" in ui.page("/")
        tasks = ui.page("/q/demo/tasks")
        assert all(each in tasks for each in task_ids.values())
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in tasks
        shown = ui.page(f"/q/demo/t/{quote(task_ids['dead'])}")
        assert "<script>alert" not in shown
        assert "KEY" in shown
        assert "a-secret" not in shown
        assert "hello" in ui.page(f"/q/demo/t/{task_ids['done']}")
        found = ui.page("/q/demo/tasks?exit=7")
        assert task_ids["dead"] in found
        assert task_ids["done"] not in found
        assert ui.status(f"/q/demo/t/{task_ids['done']}/output") == 200
        assert ui.status("/q/nowhere/tasks") == 404
        for name in ("%ED%A0%80", "a%00b", "a%2Fb", "%3Cscript%3E"):
            assert ui.status(f"/q/{name}/tasks") == 404, name
        for id_ in ("%ED%A0%80", "%00"):
            assert ui.status(f"/q/demo/t/{id_}") == 404, id_
        assert ui.status("/tokens") == 404, "tokens are the service's"
        assert 'href="/ui/tokens"' not in ui.page("/")


def test_what_is_done_is_noted_by_the_service_after_the_token(service: Dashboard, task_ids: dict[str, str]) -> None:
    """Chosen tasks, one by one; who has done it sees it, and on all that match it is done where they are kept."""
    token = service.token("operate", "view")
    with _entered(service, token) as ui:
        assert "1 due now" in ui.do("hasten", task_ids["later"])[1]
        assert "1 canceled" in ui.do("cancel", task_ids["ready"])[1]
        assert "the queue is paused" in ui.do("pause")[1]
        assert "tasks are handed out again" in ui.do("resume")[1]
        assert ui.do("purge", task_ids["dead"])[0] == 403
        assert "begun in the service's own dashboard" in ui.page("/q/demo/tasks?state=dead").replace("&#39;", "'")
        assert "Retry all that match" not in ui.page("/q/demo/tasks?state=dead")
        form = ui.here.ask("GET", "/ui/q/demo", cookie=ui.cookie).form_token
        fields = {"form": form, "action": "retry", "back": "/ui/q/demo/tasks?state=dead"}
        for path in ("act-all", "do-all"):
            assert ui.here.ask("POST", f"/ui/q/demo/{path}", cookie=ui.cookie, fields=fields).status in (403, 404)
        assert "begun in the service's own dashboard" in ui.page("/actions")
        audit = ui.page("/q/demo/audit")
        assert "done: 1 canceled" in audit

    async def noted(backend: Backend) -> list[QueueChange | None]:
        notes = observations_of(backend)
        assert notes is not None
        return [QueueChange.decode(each.value) for each in await notes.page(NoteKind.CHANGE, "", 100)]

    changes = [each for each in service.inside(noted) if each is not None]
    assert {each.did for each in changes} == {"hasten", "cancel", "pause", "resume"}
    assert {each.by.split()[0] for each in changes} == {token.split("_")[1]}
    assert {each.state for each in changes} == {"done"}
    with _entered(service, service.token("operate", "view", name="another")) as ui:
        assert "1 canceled" not in ui.page("/q/demo/audit")


@pytest.mark.parametrize(
    ("scopes", "options", "seen", "refused"),
    [
        (("watch",), (), ("/q/demo", "/"), ("/q/demo/tasks", "/q/demo/leases", "/q/demo/hosts")),
        (("view",), (), ("/q/demo/tasks", "/q/demo/leases"), ()),
        (("read",), (), ("/q/demo/tasks",), ()),
        (("operate", "view"), ("--read-only",), ("/q/demo/tasks",), ()),
    ],
)
def test_a_token_shows_what_it_permits(
    service: Dashboard,
    task_ids: dict[str, str],
    scopes: tuple[str, ...],
    options: tuple[str, ...],
    seen: tuple[str, ...],
    refused: tuple[str, ...],
) -> None:
    with _entered(service, service.token(*scopes), *options) as ui:
        for path in seen:
            ui.page(path)
        for path in refused:
            assert ui.status(path) == 403, path
        assert ui.do("cancel", task_ids["dead"])[0] == 403
        assert "Cancel selected" not in ui.page("/q/demo")


def test_a_token_of_one_queue_is_told_of_no_other(service: Dashboard) -> None:
    service.inside(lambda backend: backend.create(), service.spec.replace("/demo", "/unseen-one"))
    with _entered(service, service.token("view", queues=("demo",))) as ui:
        assert "unseen-one" not in ui.page("/")
        assert ui.status("/q/unseen-one/tasks") == 403


@pytest.mark.parametrize("token", ["jobq_0_no", None])
def test_who_has_no_good_token_is_told_so(service: Dashboard, token: str | None) -> None:
    environment = service.environment | {"JOBQ_HOME": str(service.folder / "elsewhere")}
    if token is not None:
        environment |= {"JOBQ_HTTP_TOKEN": token}
    words = [sys.executable, "-m", "jobq", "ui", f"{service.url}/demo", "--no-open", "--json"]
    done = forked.run(words, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 3
    assert "JOBQ_HTTP_TOKEN" in done.stderr


def test_a_worker_over_http_is_seen_on_the_page_of_hosts(service: Dashboard) -> None:
    """Its token, which may lease and settle, is enough to tell of it."""
    worker = Dashboard(
        service.server, f"{service.url}/demo", service.folder, {"JOBQ_HTTP_TOKEN": service.token("lease", "settle")}
    )
    with _entered(service, service.token("view")) as ui, worker.worker("-n", "3"):
        until = time.monotonic() + 30
        while "0/3" not in (found := ui.page("/q/demo/hosts")):
            assert time.monotonic() < until, found
            time.sleep(0.2)


def test_in_a_browser(service: Dashboard, task_ids: dict[str, str], opened: Opened) -> None:
    """Nothing of it runs, and a task is put back by hand."""
    with _entered(service, service.token("operate", "view")) as ui:
        page = opened("/ui/about")  # a page of the other one: for its context
        name, _, value = ui.cookie.partition("=")
        page.context.add_cookies([{"name": name, "value": value, "url": ui.here.url}])
        own = page.context.new_page()
        dialogs: list[str] = []
        own.on("dialog", lambda dialog: dialogs.append(dialog.message))
        own.goto(f"{ui.here.url}/ui/q/demo/t/{task_ids['dead']}")
        own.get_by_role("button", name="Retry...").click()
        own.get_by_role("button", name="Put 1 task back, with fresh budgets", exact=True).click()
        expect(own.get_by_role("status")).to_have_text("1 put back")
        assert dialogs == []
