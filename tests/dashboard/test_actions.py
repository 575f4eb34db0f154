"""What can be done in the browser, to real tasks of a real worker; by keyboard alone, and without scripts."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import Opened
from tests.dashboard.support import Dashboard

pytestmark = pytest.mark.check


def _confirm(page: Page, name: str) -> None:
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.get_by_role("button", name=name, exact=True).click()


@pytest.mark.slow("a browser beside a service and workers")
@pytest.mark.parametrize("has_scripts", [True, False])
def test_a_dead_letter_is_put_back_and_runs_again(dashboard: Dashboard, opened: Opened, has_scripts: bool) -> None:
    flag = dashboard.folder / f"mended-{has_scripts}"
    task_id = dashboard.push(f"test -e {flag}", "--num-retries", "0")
    with dashboard.worker("-n", "1"):
        dashboard.wait_for(task_id, "dead")
        flag.touch()
        page = opened(f"/ui/q/demo/tasks?state=dead&id={task_id}", java_script_enabled=has_scripts)
        page.get_by_label(f"Select {task_id}").check()
        page.get_by_role("button", name="Retry selected...").click()
        _confirm(page, "Put 1 task back, with fresh budgets")
        expect(page.get_by_role("status")).to_have_text("1 put back")
        assert f"id={task_id}" in page.url, "the filter is kept"
        dashboard.wait_for(task_id, "succeeded")


def test_a_running_task_is_canceled_by_keyboard_alone(dashboard: Dashboard, opened: Opened) -> None:
    task_id = dashboard.push("sleep 1000")
    with dashboard.worker("-n", "1"):
        dashboard.wait_for(task_id, "running")
        page = opened(f"/ui/q/demo/t/{task_id}")
        expect(page.get_by_role("button", name="Cancel...")).to_be_visible()
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.value") == "cancel":
                break
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 1 task")
        page.keyboard.press("Enter")  # the button has the focus
        expect(page.get_by_role("status")).to_have_text("1 stop with their next heartbeat")
        dashboard.wait_for(task_id, "canceled")


@pytest.mark.parametrize("has_scripts", [True, False])
def test_what_is_put_off_runs_now(dashboard: Dashboard, opened: Opened, has_scripts: bool) -> None:
    """One on its page, several in the list; a button is there for those that are put off alone."""
    ids = [dashboard.push("true", "--id", f"later-{has_scripts}-{number}", "--delay", "1h") for number in range(3)]
    with dashboard.worker("-n", "1"):
        page = opened(f"/ui/q/demo/t/{ids[0]}", "operate", "view", java_script_enabled=has_scripts)
        page.get_by_role("button", name="Run now...").click()
        _confirm(page, "Run 1 task now")
        expect(page.get_by_role("status")).to_have_text("1 due now")
        dashboard.wait_for(ids[0], "succeeded")
        page.goto(f"{dashboard.url}/ui/q/demo/t/{ids[0]}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_role("button", name="Run now...")).to_have_count(0)
        page.goto(f"{dashboard.url}/ui/q/demo/tasks?id=later-{has_scripts}-")
        for each in ids:
            page.get_by_label(f"Select {each}").check()
        page.get_by_role("button", name="Run selected now...").click()
        _confirm(page, "Run 3 tasks now")
        expect(page.get_by_role("status")).to_have_text("2 due now, 1 had ended")
        for each in ids:
            dashboard.wait_for(each, "succeeded")


def test_what_is_purged_is_gone(dashboard: Dashboard, opened: Opened) -> None:
    task_id = dashboard.push("exit 9", "--num-retries", "0")
    with dashboard.worker("-n", "1"):
        dashboard.wait_for(task_id, "dead")
    page = opened(f"/ui/q/demo/t/{task_id}")
    page.get_by_role("button", name="Purge...").click()
    expect(page.get_by_text("For good")).to_be_visible()
    _confirm(page, "Purge 1 task")
    expect(page.locator("main")).to_contain_text("nothing is known of this task")


def test_a_queue_is_paused_and_resumed(dashboard: Dashboard, opened: Opened) -> None:
    page = opened("/ui/q/demo", "operate", "view")
    page.get_by_role("button", name="Pause the queue").click()
    page.get_by_label("Why").fill("GPU driver <update>")
    _confirm(page, "Pause the queue")
    expect(page.get_by_role("status")).to_contain_text("the queue is paused")
    expect(page.get_by_text("GPU driver <update>")).to_be_visible()
    assert "GPU driver <update>" in dashboard.jobq("size")
    overview = opened("/ui/", "view")
    expect(overview.get_by_role("row").filter(has_text="demo")).to_contain_text(re.compile("paused .* ago by .*"))
    overview = opened("/ui/", "watch")
    state = overview.get_by_role("row").filter(has_text="demo").locator("td").last
    expect(state).to_have_text(re.compile("^paused [0-9.]+[smh] ago$"))
    page.get_by_role("button", name="Resume the queue").click()
    _confirm(page, "Resume the queue")
    expect(page.get_by_role("button", name="Pause the queue")).to_be_visible()
    assert "GPU" not in dashboard.jobq("size")


def test_who_canceled_a_task_stands_on_its_page(dashboard: Dashboard, opened: Opened) -> None:
    task_id = dashboard.push("true", "--delay", "1h")
    dashboard.jobq("cancel", task_id)
    page = opened(f"/ui/q/demo/t/{task_id}", "admin", "view")
    expect(page.locator(".facts")).to_contain_text(re.compile("Cancel.* ago by .*@.*command line"))
    page = opened(f"/ui/q/demo/t/{task_id}", "view")
    expect(page.locator(".facts")).not_to_contain_text("command line")
    expect(page.locator(".facts").get_by_role("link", name="Audit")).to_be_visible()


def test_a_batch_says_about_how_long_it_takes(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    own = Dashboard(dashboard.server, dashboard.spec.replace("/demo", f"/{queue}"), dashboard.folder)
    own.jobq("push", "--batch", "s9", "--grid", "n=1..9", "-c", "sleep $(($PARAM_n / 4 * 100))")
    with own.worker("-n", "1"):
        page = opened(f"/ui/q/{queue}/batches", "view")
        row = page.locator("[id='batch-s9']")
        expect(row.locator("td").nth(4)).to_have_text("6", timeout=20_000)
        expect(row.locator("td").nth(5)).to_have_text(re.compile("[0-9.]+[smh]"), timeout=20_000)


def test_a_batch_is_canceled(dashboard: Dashboard, opened: Opened) -> None:
    dashboard.jobq("push", "--batch", "s8", "--grid", "n=1..3", "-c", "true")
    page = opened("/ui/q/demo/batches")
    page.get_by_label("Select s8").check()
    page.get_by_role("button", name="Cancel selected...").click()
    _confirm(page, "Cancel 1 batch with all tasks of it")
    expect(page.get_by_role("status")).to_contain_text("1 batch canceled")
    assert "3 canceled" in dashboard.jobq("batch", "show", "s8")


def test_nothing_is_done_where_nothing_is_chosen(opened: Opened, dashboard: Dashboard) -> None:
    dashboard.push("true")
    page = opened("/ui/q/demo/tasks?state=ready")
    page.get_by_role("button", name="Cancel selected...").click()
    expect(page.locator("main")).to_contain_text("nothing is chosen")


def test_all_of_a_page_are_chosen_at_once(dashboard: Dashboard, opened: Opened) -> None:
    ids = [dashboard.push("true", "--id", f"all-{number}") for number in range(3)]
    page = opened("/ui/q/demo/tasks?id=all-")
    page.get_by_label("Select all of this page").check()
    page.get_by_role("button", name="Cancel selected...").click()
    _confirm(page, f"Cancel {len(ids)} tasks")
    expect(page.get_by_role("status")).to_have_text("3 canceled")
    expect(page.locator("#live input:checked")).to_have_count(0)


@pytest.mark.slow("a browser beside a service and workers")
def test_a_page_is_live_until_it_is_paused(dashboard: Dashboard, opened: Opened) -> None:
    page = opened("/ui/q/demo/tasks?id=live-")
    expect(page.get_by_text("No task matches")).to_be_visible()
    dashboard.push("true", "--id", "live-1")
    expect(page.locator("tbody tr")).to_have_count(1, timeout=15_000)
    page.get_by_role("link", name="live-1").focus()
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    dashboard.push("true", "--id", "live-2")
    with _no_request(page):
        page.wait_for_timeout(6_000)  # longer than it polls
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("tbody tr")).to_have_count(2, timeout=15_000)
    page.get_by_label("Select live-1").check()
    dashboard.push("true", "--id", "live-3")
    with _no_request(page):
        page.wait_for_timeout(6_000)
    assert page.get_by_label("Select live-1").is_checked()


class _no_request:  # noqa: N801 - a context
    def __init__(self, page: Page) -> None:
        self._page = page
        self._asked: list[str] = []

    def __enter__(self) -> None:
        self._page.on("request", lambda request: self._asked.append(request.url))

    def __exit__(self, *exc_info: object) -> None:
        assert self._asked == []


@pytest.mark.slow("a browser beside a service and workers")
def test_a_service_that_is_away_leaves_what_stands_there(opened: Opened) -> None:
    """And says so beside it; when it is back, the page goes on."""
    page = opened("/ui/q/demo")
    expect(page.locator("#live-state")).to_contain_text("Live")
    page.route("**/ui/q/demo?**", lambda route: route.abort())
    expect(page.locator("#live-state")).to_contain_text("next try in", timeout=15_000)
    expect(page.locator("dl.counts")).to_be_visible()
    page.unroute("**/ui/q/demo?**")
    expect(page.locator("#live-state")).not_to_contain_text("next try in", timeout=20_000)
    assert any("net::ERR_FAILED" in said for said in opened.complaints)  # as the browser and htmx tell of it
    opened.complaints.clear()


def test_escape_clears_a_field_of_the_filter(dashboard: Dashboard, opened: Opened) -> None:
    """One that nobody has applied is empty again; one that is applied is taken off, and the others stay."""
    dashboard.push("true", "--id", "escaped-1")
    page = opened("/ui/q/demo/tasks?id=no-such&state=ready")
    expect(page.locator("main")).to_contain_text("No task matches")
    field = page.get_by_label("Part of the id")
    field.press("Escape")
    expect(page.locator("[id='task-escaped-1']")).to_be_visible()
    expect(page.get_by_label("State")).to_have_value("ready")
    expect(field).to_have_value("")
    field.fill("something else")
    field.press("Escape")
    expect(field).to_have_value("")
    expect(page.locator("[id='task-escaped-1']")).to_be_visible()
