"""Pages of what is noted of a queue: charts, hosts, who changed what; and the tokens."""

import re
import time

import pytest
from playwright.sync_api import expect

from jobq.backend import Backend
from jobq.dashboard.series import SPANS
from jobq.journal.changes import QueueChange, change_key
from jobq.journal.minutes import MINUTE, EndedAttempts, QueueDepth, start_of
from jobq.journal.notes import NoteKind, time_key
from jobq.journal.observations import observations_of
from jobq.journal.presence import WorkerPresence
from tests.dashboard.conftest import Opened
from tests.dashboard.support import Dashboard

pytestmark = pytest.mark.check


async def _noted(backend: Backend) -> None:
    notes = observations_of(backend)
    assert notes is not None
    last = start_of(time.time()) - 3 * MINUTE
    for back, succeeded in enumerate((30, 60, 45)):
        ended = EndedAttempts.of({"succeeded": succeeded, "failed": 3, "lock_lost": 2 * back}, [4.0] * 20)
        depth = QueueDepth(counts={"ready": 100 + back, "running": 7}, oldest_seconds=200.0)
        await notes.put(NoteKind.ENDED, time_key(last - back * MINUTE), ended.encode(), replaces=True)
        await notes.put(NoteKind.DEPTH, time_key(last - back * MINUTE), depth.encode(), replaces=True)


@pytest.mark.parametrize("has_scripts", [True, False])
def test_charts_show_what_was_noted(dashboard: Dashboard, queue: str, opened: Opened, has_scripts: bool) -> None:
    """To who sees numbers alone, too; the table has the same, and each span its own address."""
    spec = dashboard.spec.replace("/demo", f"/{queue}")
    dashboard.inside(_noted, spec)
    page = opened(f"/ui/q/{queue}", "watch", java_script_enabled=has_scripts)
    ended = page.locator("#chart-ended")
    expect(ended).to_contain_text(re.compile(r"up to (60|45)"))  # a minute may have gone by
    assert len(re.findall("M", ended.locator("path.good").get_attribute("d") or "")) >= 2
    expect(page.locator("#chart-depth svg")).to_have_attribute("aria-label", re.compile("ready 10[01], running 7"))
    expect(page.locator("#chart-oldest")).to_contain_text("oldest ready 3m")
    page.get_by_text("Figures as a table").click()
    expect(page.locator("details tbody tr").filter(has_text="60").first).to_contain_text("101")
    for span in SPANS:
        if span != "1h":
            page.get_by_role("link", name=span, exact=True).click()
        expect(page.locator("strong[aria-current]")).to_have_text(span)
    page.goto(f"{dashboard.url}/ui/")
    while not page.get_by_role("link", name=queue, exact=True).count():  # what was looked up before it was made
        page.reload()
    row = page.get_by_role("row").filter(has_text=queue)
    expect(row.locator("svg")).to_be_visible()
    expect(row.locator("td").nth(7)).to_have_text("6")


def test_a_queue_that_nobody_has_noted(queue: str, opened: Opened) -> None:
    page = opened(f"/ui/q/{queue}?span=10y")
    expect(page.locator("strong[aria-current]")).to_have_text("1h")
    expect(page.locator("#chart-runs")).to_contain_text("Nobody has noted it in this time")


@pytest.mark.slow("a browser beside a service and workers")
def test_hosts_show_idle_workers_and_those_that_are_gone(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    page = opened("/ui/hosts")
    own = Dashboard(dashboard.server, dashboard.spec.replace("/demo", f"/{queue}"), dashboard.folder)
    with own.worker("-n", "3"):
        row = page.locator("table").first.locator("tbody tr").filter(has_text="working")
        expect(row).to_contain_text("0/3", timeout=20_000)
    page.goto(f"{dashboard.url}/ui/q/{queue}/hosts")
    expect(page.locator("table").first.locator("tbody tr")).to_contain_text("stopped", timeout=20_000)
    page.get_by_text("Each worker").click()
    expect(page.locator("details tbody tr")).to_have_count(1)


def test_numbers_of_a_host_are_of_all_its_workers(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    async def told(backend: Backend) -> None:
        notes = observations_of(backend)
        assert notes is not None
        for number, (state, busy) in enumerate((("working", 3), ("draining", 1), ("stopped", 0))):
            one = WorkerPresence(
                holder=f"node-7:{number}",
                host="node-7",
                version="0.2",
                slots=4,
                busy=busy,
                state=state,
                started=time.time() - 100,
                succeeded=1000,
                failed=7,
            )
            await notes.put(NoteKind.WORKER, one.holder, one.encode(), replaces=True)

    dashboard.inside(told, dashboard.spec.replace("/demo", f"/{queue}"))
    page = opened(f"/ui/q/{queue}/hosts")
    cells = page.locator("table").first.locator("tbody tr").locator("th, td")
    expect(cells).to_have_count(10)
    assert cells.all_inner_texts()[:6] == ["node-7", "2", "4/8", "1 working, 1 draining", "3,000", "21"]


def test_who_did_what_is_noted_and_who_else_did_is_for_administrators(
    dashboard: Dashboard, queue: str, opened: Opened
) -> None:
    own = Dashboard(dashboard.server, dashboard.spec.replace("/demo", f"/{queue}"), dashboard.folder)
    task_id = own.push("true")
    page = opened(f"/ui/q/{queue}/tasks", "operate", "view")
    page.get_by_label(f"Select {task_id}").check()
    page.get_by_role("button", name="Cancel selected...").click()
    page.get_by_role("button", name="Cancel 1 task").click()
    page.goto(f"{dashboard.url}/ui/q/{queue}/audit")
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("cancel")
    expect(row).to_contain_text(task_id)
    expect(row).to_contain_text("done: 1 canceled")
    expect(row).to_contain_text("127.0.0.1")
    other = opened("/ui/audit", "view")
    expect(other.get_by_text("Nothing was changed here by your token")).to_be_visible()
    chief = opened("/ui/audit")
    expect(chief.get_by_role("row").filter(has_text=task_id)).to_have_count(1)


def test_actions_on_all_are_noted_with_their_filter_and_their_end(
    dashboard: Dashboard, queue: str, opened: Opened
) -> None:
    own = Dashboard(dashboard.server, dashboard.spec.replace("/demo", f"/{queue}"), dashboard.folder)
    for number in range(3):
        own.push("true", "--delay", "1h", "--id", f"later-{number}")
    page = opened(f"/ui/q/{queue}/tasks?state=scheduled&id=later-")
    page.get_by_role("button", name="Cancel all that match...").click()
    page.get_by_role("button", name="Cancel 3 tasks").click()
    expect(page.get_by_role("row").filter(has_text=queue)).to_contain_text("done", timeout=20_000)
    page.goto(f"{dashboard.url}/ui/q/{queue}/audit")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="begun as")).to_contain_text("state=scheduled, id=later-")
    expect(rows.filter(has_text="changed by this service")).to_contain_text("3 tasks")


def test_whatever_somebody_has_noted_is_shown_as_it_is(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    """Over HTTP a note may have any words, and ids that none can have: those lead nowhere."""
    spec = dashboard.spec.replace("/demo", f"/{queue}")
    task_id = Dashboard(dashboard.server, spec, dashboard.folder).push("true", "--delay", "1h")
    ids = ("\ud800", "<script>alert(1)</script>", task_id)
    at = time.time()
    change = QueueChange(at=at, by="\u202e\ud800", did="\u202ecancel\x1b", ids=ids, filter="\ud800&%ED%A0%80")

    async def note(backend: Backend) -> None:
        notes = observations_of(backend)
        assert notes is not None
        await notes.put(NoteKind.CHANGE, change_key(at, "aa"), change.encode(), replaces=True)

    dashboard.inside(note, spec)
    page = opened(f"/ui/q/{queue}/audit")
    row = page.locator("tbody tr")
    expect(row).to_contain_text("<script>alert(1)</script>")
    expect(row.get_by_role("link")).to_have_text([task_id])
    assert "\u202e" not in page.content()
    row.get_by_role("link").click()
    expect(page.locator(".facts")).to_contain_text("cancel")
    assert "\u202e" not in page.content()


async def _full_of_changes(backend: Backend) -> None:
    notes = observations_of(backend)
    assert notes is not None
    for number in range(230):
        change = QueueChange(at=time.time() - 1000 + number, by="x somebody", did=f"did-{number}", count=1)
        await notes.put(NoteKind.CHANGE, change_key(change.at), change.encode(), replaces=True)


def test_a_long_audit_is_read_page_by_page(dashboard: Dashboard, queue: str, opened: Opened) -> None:
    dashboard.inside(_full_of_changes, dashboard.spec.replace("/demo", f"/{queue}"))
    page = opened(f"/ui/q/{queue}/audit")
    seen = page.locator("tbody th").all_inner_texts()
    while page.get_by_role("link", name="Next page").count():
        page.get_by_role("link", name="Next page").click()
        page.wait_for_load_state()
        seen += page.locator("tbody th").all_inner_texts()
    assert seen == [f"did-{number}" for number in reversed(range(230))]


def test_a_token_is_revoked(dashboard: Dashboard, opened: Opened) -> None:
    """And whoever was signed in by it is out; who is no administrator of all queues sees none."""
    token = dashboard.token("view")
    cookie = dashboard.sign_in(token)
    page = opened("/ui/tokens")
    row = page.get_by_role("row").filter(has_text=token.split("_")[1])
    row.get_by_role("button").click()
    expect(page.get_by_text("is out within two seconds")).to_be_visible()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.get_by_role("row").filter(has_text=token.split("_")[1])).to_have_count(0)
    until = time.monotonic() + 20
    while dashboard.ask("GET", "/ui/", cookie=cookie).status == 200:
        assert time.monotonic() < until
        time.sleep(0.1)
    for scopes in (("operate", "view"), ("watch",)):
        assert dashboard.ask("GET", "/ui/tokens", cookie=dashboard.cookie(*scopes)).status == 403
