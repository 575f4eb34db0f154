"""Actions on all tasks that a filter takes: what was meant and nothing else, also when the service is killed."""

import time
from collections import Counter
from datetime import timedelta

import pytest
from playwright.sync_api import expect

from jobq.backend import Backend
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.views import views_of
from jobq.settlement import MoveToDeadLetters
from jobq.task import Task
from tests.dashboard.conftest import Opened
from tests.dashboard.support import Dashboard
from tests.service.server import HttpServer

_LEASE, _NOW = timedelta(seconds=300), timedelta(0)


def _spec(dashboard: Dashboard, queue: str) -> str:
    return dashboard.spec.replace("/demo", f"/{queue}")


def _die(dashboard: Dashboard, queue: str, count: int, exit_code: int) -> None:
    """Let so many tasks die."""

    async def work(backend: Backend) -> None:
        for start in range(0, count, 500):
            some = min(500, count - start)
            await backend.push([Task.new(command=f"exit {exit_code}") for _ in range(some)])
            left = some
            while left:
                for each in await backend.receive(left, _LEASE, _NOW):
                    await each.settle(MoveToDeadLetters("failed", f"failed; last: exit code {exit_code}"))
                    left -= 1

    dashboard.inside(work, _spec(dashboard, queue))


def _counts(dashboard: Dashboard, queue: str) -> Counter[str]:
    """Return how many tasks there are by state and what runs."""

    async def work(backend: Backend) -> Counter[str]:
        found: Counter[str] = Counter()
        async with views_of(backend) as views:
            after: str | None = ""
            while after is not None:
                page = await views.tasks(queue, TaskFilter(), after, 500, budget=timedelta(seconds=10))
                found.update(f"{row.state} {row.runs}" for row in page.rows)
                after = page.after
        return found

    return dashboard.inside(work, _spec(dashboard, queue))


def _wait(dashboard: Dashboard, cookie: str, word: str, count: int = 1) -> None:
    """Return once the page of actions says a word so often."""
    deadline = time.monotonic() + 60
    while dashboard.ask("GET", "/ui/actions", cookie=cookie).text.count(f"<td>{word}</td>") < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_a_filter_takes_is_put_back_and_nothing_else(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    _die(dashboard, queue, 1200, 137)
    _die(dashboard, queue, 30, 3)
    page = opened(f"/ui/q/{queue}/tasks?state=dead&exit=137")
    page.get_by_role("button", name="Retry all that match...").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Put 1,200 tasks back, with fresh budgets")
    _die(dashboard, queue, 5, 137)  # later than what was confirmed
    page.get_by_role("button", name="Put 1,200 tasks back, with fresh budgets").click()
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("done", timeout=60_000)
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("1,200")
    assert _counts(dashboard, queue) == {"ready exit 137": 1200, "dead exit 3": 30, "dead exit 137": 5}


def test_all_of_a_queue_wants_its_name(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    _die(dashboard, queue, 7, 3)
    page = opened(f"/ui/q/{queue}/tasks?state=dead")
    page.get_by_role("button", name="Purge all that match...").click()
    page.get_by_label("type").fill("another")
    page.get_by_role("button", name="Purge 7 tasks").click()
    expect(page.locator("main")).to_contain_text("type the name of the queue")
    assert _counts(dashboard, queue) == {"dead exit 3": 7}
    page.goto(f"{dashboard.url}/ui/q/{queue}/tasks?state=dead")
    page.get_by_role("button", name="Purge all that match...").click()
    page.get_by_label("type").fill(queue)
    page.get_by_role("button", name="Purge 7 tasks").click()
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("done", timeout=60_000)
    assert _counts(dashboard, queue) == {}


def _begun(dashboard: Dashboard, queue: str, cookie: str, query: str = "state=dead&exit=137") -> int:
    """Put all back that a filter takes, as the browser does."""
    form = dashboard.ask("GET", f"/ui/q/{queue}", cookie=cookie).form_token
    fields = {"form": form, "action": "retry", "back": f"/ui/q/{queue}/tasks?{query}"}
    asked = dashboard.ask("POST", f"/ui/q/{queue}/act-all", cookie=cookie, fields=fields)
    names = ("query", "began", "proof")
    fields = {"form": form, "action": "retry"} | {name: asked.hidden(name).replace("&amp;", "&") for name in names}
    return dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=cookie, fields=fields).status


def test_another_service_goes_on_where_one_was_killed(dashboard: Dashboard, queue: str) -> None:
    """Each task once: what the first has put back is not touched again."""
    _die(dashboard, queue, 6000, 137)
    other = HttpServer(dashboard.spec, dashboard.folder, "--ui", is_open=False)
    other.start()
    first = Dashboard(other, dashboard.spec, dashboard.folder)
    assert _begun(first, queue, first.sign_in(dashboard.token("view", "operate"))) == 303
    while not 0 < _ready(dashboard, queue) < 6000:
        assert _ready(dashboard, queue) < 6000, "it was to be killed on the way"
    other.kill()
    left = 6000 - _ready(dashboard, queue)
    assert left > 0
    _wait(
        dashboard,
        dashboard.cookie("view"),
        "done",
        1 + dashboard.ask("GET", "/ui/actions", cookie=dashboard.cookie("view")).text.count("<td>done</td>"),
    )
    assert _counts(dashboard, queue) == {"ready exit 137": 6000}


def _ready(dashboard: Dashboard, queue: str) -> int:
    async def work(backend: Backend) -> int:
        return (await backend.stats()).visible or 0

    return dashboard.inside(work, _spec(dashboard, queue))


def test_one_that_is_stopped_is_gone_on_with_by_nobody(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    _die(dashboard, queue, 6000, 137)
    assert _begun(dashboard, queue, dashboard.cookie("view", "operate")) == 303
    page = opened("/ui/actions", "view", "operate")
    page.get_by_role("row").filter(has_text=queue).get_by_role("button", name="Stop").click()
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("stopped", timeout=30_000)
    time.sleep(8)  # longer than it takes to look for what was left
    before = _ready(dashboard, queue)
    time.sleep(8)
    assert _ready(dashboard, queue) == before < 6000


@pytest.mark.parametrize("changed", ["query", "began", "proof"])
def test_what_was_not_confirmed_is_not_begun(dashboard: Dashboard, queue: str, changed: str) -> None:
    _die(dashboard, queue, 3, 137)
    cookie = dashboard.cookie("view", "operate")
    form = dashboard.ask("GET", f"/ui/q/{queue}", cookie=cookie).form_token
    fields = {"form": form, "action": "retry", "back": f"/ui/q/{queue}/tasks?state=dead&exit=137"}
    asked = dashboard.ask("POST", f"/ui/q/{queue}/act-all", cookie=cookie, fields=fields)
    names = ("query", "began", "proof")
    fields = {"form": form, "action": "retry"} | {name: asked.hidden(name).replace("&amp;", "&") for name in names}
    wrong = {"query": "state=dead", "began": repr(time.time() + 100), "proof": "0" * 64}[changed]
    assert dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=cookie, fields=fields | {changed: wrong}).status == 403
    assert dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=dashboard.cookie("view"), fields=fields).status == 403
    assert _counts(dashboard, queue) == {f"{TaskState.DEAD} exit 137": 3}
