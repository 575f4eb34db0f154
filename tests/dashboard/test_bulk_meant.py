"""Which tasks an action on all of a filter is about: those that were so when it was confirmed, and all of these."""

import html
import re

import pytest
from playwright.sync_api import expect

from jobq.backend import Backend
from jobq.journal.store import journal_of
from jobq.journal.task_rows import MOST_BODY_BYTES
from jobq.settlement import MoveToDeadLetters
from jobq.task import Task
from tests.dashboard.bulk_support import LEASE, NOW, asked, counts, die, spec_of, wait_for_row
from tests.dashboard.conftest import Opened
from tests.dashboard.support import Dashboard

pytestmark = pytest.mark.check

_DONE = "<td>done</td>"


def _push(dashboard: Dashboard, queue: str, *commands: str, **fields: float) -> list[str]:
    tasks = [Task.new(command=each, **fields) for each in commands]
    return dashboard.inside(lambda backend: backend.push(tasks), spec_of(dashboard, queue))


def _states(dashboard: Dashboard, queue: str, ids: list[str]) -> list[str]:
    async def find(backend: Backend) -> list[str]:
        found = {each.id: str(each.state) for each in await journal_of(backend).find(ids)}
        return [found[each] for each in ids]

    return dashboard.inside(find, spec_of(dashboard, queue))


def test_all_that_waits_is_canceled_while_a_worker_claims_it(dashboard: Dashboard, queue: str) -> None:
    """What is stopped makes room for others of them, which are then claimed ahead of the walk."""
    ids = _push(dashboard, queue, *["sleep 1000"] * 300)
    mine = Dashboard(dashboard.server, spec_of(dashboard, queue), dashboard.folder)
    with mine.worker("-n", "4"):
        for each in ids[:4]:
            mine.wait_for(each, "running")
        cookie = dashboard.cookie("view", "operate")
        fields = asked(dashboard, queue, cookie, "cancel", "") | {"typed": queue}
        assert dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=cookie, fields=fields).status == 303
        wait_for_row(dashboard, queue, _DONE)
        for each in ids:
            mine.wait_for(each, "canceled")


def test_what_was_made_later_is_not_canceled_whatever_its_size(dashboard: Dashboard, queue: str) -> None:
    """A list does not read large tasks, which say when they were made."""
    commands = (f": {'x' * (MOST_BODY_BYTES + 1000)}", ":")
    before = _push(dashboard, queue, *commands)
    cookie = dashboard.cookie("view", "operate")
    form = asked(dashboard, queue, cookie, "cancel", "")
    later = _push(dashboard, queue, *commands)
    fields = form | {"typed": queue}
    assert dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=cookie, fields=fields).status == 303
    wait_for_row(dashboard, queue, _DONE)
    assert _states(dashboard, queue, [*before, *later]) == ["canceled", "canceled", "ready", "ready"]


def test_of_those_that_run_who_runs_later_is_not_meant(dashboard: Dashboard, queue: str) -> None:
    mine = Dashboard(dashboard.server, spec_of(dashboard, queue), dashboard.folder)
    first, second = _push(dashboard, queue, "sleep 1000", "sleep 1000")
    cookie = dashboard.cookie("view", "operate")
    with mine.worker("-n", "1"):
        mine.wait_for(first, "running")
        form = asked(dashboard, queue, cookie, "cancel", "state=running")
        with mine.worker("-n", "1"):
            mine.wait_for(second, "running")
            fields = form | {"typed": queue}
            assert dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=cookie, fields=fields).status == 303
            mine.wait_for(first, "canceled")
            wait_for_row(dashboard, queue, _DONE)
            assert _states(dashboard, queue, [second]) == ["running"]


def test_what_is_counted_by_age_is_what_is_done(dashboard: Dashboard, queue: str) -> None:
    """A task that waits for its time has no age, in the count and in the deed."""
    ids = _push(dashboard, queue, ":", ":") + _push(dashboard, queue, ":", not_before=4e9)
    cookie = dashboard.cookie("view", "operate")
    form = asked(dashboard, queue, cookie, "cancel", "age=0s")
    assert dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=cookie, fields=form).status == 303
    wait_for_row(dashboard, queue, _DONE)
    assert _states(dashboard, queue, ids) == ["canceled", "canceled", "scheduled"]


def test_a_group_of_dead_letters_leads_to_its_own(dashboard: Dashboard, queue: str) -> None:
    """What they have in common is no pattern."""
    left = ["lost [ab] of *", "lost [ab] of *", "lost a of all"]
    _push(dashboard, queue, ":", ":", ":")

    async def work(backend: Backend) -> None:
        while left:
            for each in await backend.receive(1, LEASE, NOW):
                words = f"failed; last: exit code 1\nlast output:\n{left.pop()}"
                await each.settle(MoveToDeadLetters("failed", words))

    dashboard.inside(work, spec_of(dashboard, queue))
    cookie = dashboard.cookie("view", "operate")
    for path in (f"/ui/q/{queue}/dead", f"/ui/q/{queue}"):
        text = dashboard.ask("GET", path, cookie=cookie).text
        links = re.findall(rf'href="(/ui/q/{queue}/tasks\?state=dead&amp;[^"]*)">(\d)</a>', text)
        assert sorted(count for _, count in links) == ["1", "2"]
        for link, count in links:
            listed = dashboard.ask("GET", html.unescape(link), cookie=cookie).text
            assert listed.count('form="act" name="id"') == int(count), link


def test_all_is_asked_for_on_a_list_alone(dashboard: Dashboard, queue: str) -> None:
    """Else what is no list would have no filter, which takes all."""
    cookie = dashboard.cookie("view", "operate")
    form = dashboard.ask("GET", f"/ui/q/{queue}", cookie=cookie).form_token
    for back in ("", f"/ui/q/{queue}", "/ui/q/demo/tasks?state=dead", f"/ui/q/{queue}/dead", "http://["):
        fields = {"form": form, "action": "retry", "back": back}
        assert dashboard.ask("POST", f"/ui/q/{queue}/act-all", cookie=cookie, fields=fields).status == 400, back


def test_a_queue_may_have_dots_in_its_name(dashboard: Dashboard, opened: Opened) -> None:
    queue = "a..b"
    dashboard.inside(lambda backend: backend.create(exist_ok=True), spec_of(dashboard, queue))
    die(dashboard, queue, 2, 137)
    die(dashboard, queue, 3, 3)
    page = opened(f"/ui/q/{queue}/tasks?state=dead&exit=137")
    page.get_by_role("button", name="Retry all that match...").click()
    page.get_by_role("button", name="Put 2 tasks back, with fresh budgets").click()
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("done", timeout=60_000)
    assert counts(dashboard, queue) == {"ready exit 137": 2, "dead exit 3": 3}
