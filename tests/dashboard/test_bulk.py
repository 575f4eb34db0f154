"""Actions on all tasks that a filter takes: what was meant, also when the service is killed, stopped or refused."""

import time
from datetime import timedelta

import pytest
from playwright.sync_api import expect

from jobq.backend import Backend
from jobq.journal.records import TaskState
from jobq.lease.named import named_lease
from jobq.lease.store import store_of
from jobq.lease.traversal import Progress
from jobq.servable import served
from jobq.server import tokens
from jobq.settings import Settings
from tests.dashboard.bulk_support import asked, begun, counts, die, ready, wait_for_actions, wait_for_row
from tests.dashboard.conftest import Opened
from tests.dashboard.support import Dashboard
from tests.service.server import HttpServer

pytestmark = pytest.mark.check


@pytest.mark.slow("a browser beside a service and workers")
def test_what_a_filter_takes_is_put_back_and_nothing_else(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    die(dashboard, queue, 1200, 137)
    die(dashboard, queue, 30, 3)
    page = opened(f"/ui/q/{queue}/tasks?state=dead&exit=137")
    page.get_by_role("button", name="Retry all that match...").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Put 1,200 tasks back, with fresh budgets")
    die(dashboard, queue, 5, 137)  # later than what was confirmed
    page.get_by_role("button", name="Put 1,200 tasks back, with fresh budgets").click()
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("done", timeout=60_000)
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("1,200")
    assert counts(dashboard, queue) == {"ready exit 137": 1200, "dead exit 3": 30, "dead exit 137": 5}


@pytest.mark.slow("a browser beside a service and workers")
def test_a_group_of_dead_letters_is_put_back_from_its_row(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    die(dashboard, queue, 8, 137)
    die(dashboard, queue, 3, 3)
    page = opened(f"/ui/q/{queue}/dead", "view", "operate")
    page.get_by_role("row").filter(has_text="137").get_by_role("button", name="Retry all 8").click()
    expect(page.locator("main")).to_contain_text("137")
    page.get_by_role("button", name="Put 8 tasks back, with fresh budgets").click()
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("done", timeout=60_000)
    assert counts(dashboard, queue) == {"ready exit 137": 8, "dead exit 3": 3}
    said = "state=dead, exit=137, error=failed; last: exit code <n>"
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text(said)
    page = opened(f"/ui/q/{queue}/audit")
    expect(page.get_by_role("row").filter(has_text=said).first).to_be_visible()
    page = opened(f"/ui/q/{queue}", "view")
    page.get_by_role("link", name="Those of the last hour").click()
    expect(page.get_by_label("Died within")).to_have_value("1h")
    expect(page.locator("caption")).to_contain_text("of the last 1h")
    expect(page.locator(".command")).to_have_count(0)  # no command takes these alone
    page.get_by_role("link", name="3", exact=True).click()
    expect(page.get_by_label("Older than")).to_have_value("<1h")
    expect(page.locator("main")).to_contain_text("3 match")
    page = opened(f"/ui/q/{queue}/dead?by=host", "view", "operate")  # nobody knows where: no filter says that
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("button", name="Retry all")).to_have_count(0)
    page = opened(f"/ui/q/{queue}/dead", "view")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("button", name="Retry all")).to_have_count(0)


def test_all_of_a_queue_wants_its_name(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    die(dashboard, queue, 7, 3)
    page = opened(f"/ui/q/{queue}/tasks?state=dead")
    page.get_by_role("button", name="Purge all that match...").click()
    page.get_by_label("type").fill("another")
    page.get_by_role("button", name="Purge 7 tasks").click()
    expect(page.locator("main")).to_contain_text("type the name of the queue")
    assert counts(dashboard, queue) == {"dead exit 3": 7}
    page.goto(f"{dashboard.url}/ui/q/{queue}/tasks?state=dead")
    page.get_by_role("button", name="Purge all that match...").click()
    page.get_by_label("type").fill(queue)
    page.get_by_role("button", name="Purge 7 tasks").click()
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("done", timeout=60_000)
    assert counts(dashboard, queue) == {}


@pytest.mark.night("services are killed and waited for: 36 s")
def test_another_service_goes_on_where_one_was_killed(dashboard: Dashboard, queue: str) -> None:
    """Each task once: what the first has put back is not touched again."""
    die(dashboard, queue, 6000, 137)
    other = HttpServer(dashboard.spec, dashboard.folder, "--ui", is_open=False)
    other.start()
    first = Dashboard(other, dashboard.spec, dashboard.folder)
    assert begun(first, queue, first.sign_in(dashboard.token("view", "operate"))) == 303
    while not 0 < ready(dashboard, queue) < 6000:
        assert ready(dashboard, queue) < 6000, "it was to be killed on the way"
    other.kill()
    left = 6000 - ready(dashboard, queue)
    assert left > 0
    wait_for_actions(
        dashboard,
        dashboard.cookie("view"),
        "done",
        1 + dashboard.ask("GET", "/ui/actions", cookie=dashboard.cookie("view")).text.count("<td>done</td>"),
    )
    assert counts(dashboard, queue) == {"ready exit 137": 6000}


@pytest.mark.night("services are killed and waited for: 45 s")
def test_one_that_is_stopped_is_gone_on_with_by_nobody(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    """Neither by who was at it, nor by another service once its lease has run out: that goes on with another one."""
    first, page = _begun_elsewhere(dashboard, queue), opened("/ui/actions", "view", "operate")
    row = page.get_by_role("row").filter(has_text="exit=137").filter(has_text=queue)
    row.get_by_role("button", name="Stop").click()
    expect(row).to_contain_text("stopped")
    _wait_for_rest(dashboard, queue)
    first.server.kill()
    left = counts(dashboard, queue)
    assert left["dead exit 137"] > 0
    row = page.get_by_role("row").filter(has_text="exit=3").filter(has_text=queue)
    expect(row).to_contain_text("done", timeout=90_000)
    assert counts(dashboard, queue)["dead exit 137"] == left["dead exit 137"]
    assert counts(dashboard, queue)["ready exit 3"] == 3000


@pytest.mark.night("services are killed and waited for: 40 s")
def test_one_that_was_left_can_be_stopped(dashboard: Dashboard, queue: str) -> None:
    """While its lease still says that somebody is at it; what was begun beside it is gone on with."""
    _begun_elsewhere(dashboard, queue).server.kill()
    left = counts(dashboard, queue)
    cookie = dashboard.cookie("view", "operate")
    page = dashboard.ask("GET", "/ui/actions", cookie=cookie)
    of_it = next(part for part in page.text.split('id="action-') if f">{queue}<" in part and "exit=137" in part)
    fields = {"form": page.form_token, "id": of_it.partition('"')[0]}
    assert dashboard.ask("POST", "/ui/actions/stop", cookie=cookie, fields=fields).status == 303
    deadline = time.monotonic() + 90
    while counts(dashboard, queue)["dead exit 3"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert counts(dashboard, queue)["dead exit 137"] == left["dead exit 137"] > 0


def _begun_elsewhere(dashboard: Dashboard, queue: str) -> Dashboard:
    """Begin two actions in a service of their own, and return it once it is at both."""
    die(dashboard, queue, 6000, 137)
    die(dashboard, queue, 3000, 3)
    other = HttpServer(dashboard.spec, dashboard.folder, "--ui", is_open=False)
    other.start()
    first = Dashboard(other, dashboard.spec, dashboard.folder)
    cookie = first.sign_in(dashboard.token("view", "operate"))
    for query in ("state=dead&exit=137", "state=dead&exit=3"):
        assert begun(first, queue, cookie, query) == 303
    while not {"ready exit 137", "ready exit 3"} <= counts(dashboard, queue).keys():
        pass
    return first


def _wait_for_rest(dashboard: Dashboard, queue: str) -> None:
    """Return once the step that was under way is done: it takes a fraction of a second."""
    before = -1
    while (now := counts(dashboard, queue)["ready exit 137"]) != before:
        before = now
        time.sleep(2)


@pytest.mark.night("a service, workers and a browser: 20 s")
@pytest.mark.slow("a browser beside a service and workers")
def test_one_whose_token_is_revoked_goes_no_further(dashboard: Dashboard, queue: str) -> None:
    die(dashboard, queue, 6000, 137)
    token = dashboard.token("view", "operate")
    assert begun(dashboard, queue, dashboard.sign_in(token)) == 303
    dashboard.inside(lambda backend: tokens.revoke(served(backend), token.split("_")[1]))
    wait_for_row(dashboard, queue, "refused")
    assert counts(dashboard, queue)["dead exit 137"] > 0


def test_a_lease_begins_no_action(dashboard: Dashboard, queue: str) -> None:
    """Who may write leases, as pushers on PostgreSQL do, lets the service do nothing by one, and breaks no page."""
    die(dashboard, queue, 5, 137)
    source = {"action": "purge", "queue": queue, "query": "", "began": repr(time.time()), "by": "x"}
    cursors = (Progress(source=source).encode(), "{}", "no json", Progress(after=["", 3], handled=9).encode())

    async def write(backend: Backend) -> None:
        settings = Settings(allow_short_lease=True)
        for number, cursor in enumerate(cursors):
            name = f"jobq.action.0-{number}"
            async with named_lease(store_of(backend), settings, name, ttl=timedelta(seconds=5)) as lease:
                await lease.save(cursor)

    dashboard.inside(write)
    assert begun(dashboard, queue, dashboard.cookie("view", "operate"), "state=dead&exit=7") == 303, "and others go on"
    wait_for_row(dashboard, queue, "<td>done</td>")
    assert "action-0-" not in dashboard.ask("GET", "/ui/actions", cookie=dashboard.cookie("view")).text
    assert counts(dashboard, queue) == {"dead exit 137": 5}


@pytest.mark.parametrize("changed", ["query", "began", "proof"])
def test_what_was_not_confirmed_is_not_begun(dashboard: Dashboard, queue: str, changed: str) -> None:
    die(dashboard, queue, 3, 137)
    cookie = dashboard.cookie("view", "operate")
    fields = asked(dashboard, queue, cookie, "retry", "state=dead&exit=137")
    wrong = {"query": "state=dead", "began": repr(time.time() + 100), "proof": "0" * 64}[changed]
    assert dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=cookie, fields=fields | {changed: wrong}).status == 403
    assert dashboard.ask("POST", f"/ui/q/{queue}/do-all", cookie=dashboard.cookie("view"), fields=fields).status == 403
    assert counts(dashboard, queue) == {f"{TaskState.DEAD} exit 137": 3}
