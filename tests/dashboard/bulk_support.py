"""What the tests of actions on all tasks of a filter share: tasks that die, counts, the forms of an action."""

import html
import time
from collections import Counter
from datetime import timedelta

from jobq.backend import Backend
from jobq.journal.task_filter import TaskFilter
from jobq.journal.views import views_of
from jobq.settlement import MoveToDeadLetters
from jobq.task import Task
from tests.dashboard.support import Dashboard

LEASE, NOW = timedelta(seconds=300), timedelta(0)


def spec_of(dashboard: Dashboard, queue: str) -> str:
    return dashboard.spec.replace("/demo", f"/{queue}")


def die(dashboard: Dashboard, queue: str, count: int, exit_code: int) -> None:
    """Let so many tasks die."""

    async def work(backend: Backend) -> None:
        for start in range(0, count, 500):
            some = min(500, count - start)
            await backend.push([Task.new(command=f"exit {exit_code}") for _ in range(some)])
            left = some
            while left:
                for each in await backend.receive(left, LEASE, NOW):
                    await each.settle(MoveToDeadLetters("failed", f"failed; last: exit code {exit_code}"))
                    left -= 1

    dashboard.inside(work, spec_of(dashboard, queue))


def counts(dashboard: Dashboard, queue: str) -> Counter[str]:
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

    return dashboard.inside(work, spec_of(dashboard, queue))


def wait_for_actions(dashboard: Dashboard, cookie: str, word: str, count: int = 1) -> None:
    """Return once the page of actions says a word so often."""
    deadline = time.monotonic() + 60
    while dashboard.ask("GET", "/ui/actions", cookie=cookie).text.count(f"<td>{word}</td>") < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ready(dashboard: Dashboard, queue: str) -> int:
    async def work(backend: Backend) -> int:
        return (await backend.stats()).visible or 0

    return dashboard.inside(work, spec_of(dashboard, queue))


def asked(dashboard: Dashboard, queue: str, cookie: str, action: str, query: str) -> dict[str, str]:
    """Ask for an action on all that a filter takes; return the form that confirms it."""
    form = dashboard.ask("GET", f"/ui/q/{queue}", cookie=cookie).form_token
    fields = {"form": form, "action": action, "back": f"/ui/q/{queue}/tasks?{query}"}
    answer = dashboard.ask("POST", f"/ui/q/{queue}/act-all", cookie=cookie, fields=fields)
    names = ("query", "began", "proof")
    return {"form": form, "action": action} | {name: html.unescape(answer.hidden(name)) for name in names}


def begun(dashboard: Dashboard, queue: str, cookie: str, query: str = "state=dead&exit=137") -> int:
    """Put all back that a filter takes, as the browser does."""
    fields = asked(dashboard, queue, cookie, "retry", query)
    return dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=cookie, fields=fields).status


def wait_for_row(dashboard: Dashboard, queue: str, word: str) -> None:
    """Return once the page of actions says a word of the last one on a queue."""
    deadline = time.monotonic() + 60
    while word not in _row(dashboard, queue):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _row(dashboard: Dashboard, queue: str) -> str:
    text = dashboard.ask("GET", "/ui/actions", cookie=dashboard.cookie("view")).text
    return next((part for part in text.split("<tr") if f">{queue}<" in part), "")
