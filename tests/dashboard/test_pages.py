"""Each page in a browser: with scripts and without, on a phone, in the dark, by axe; of a queue that is full."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import Opened
from tests.dashboard.support import Dashboard

pytestmark = pytest.mark.check

_AXE = (Path(__file__).parent / "axe.min.js").read_text()
_PHONE = {"width": 360, "height": 740}
# In `make check`, beside each page on a phone.
_BY_DAY = {("q/demo", "light"), ("q/demo", "dark"), ("t/dead", "dark")}
_PAGES = (
    "",
    "q/demo",
    "q/demo/tasks",
    "q/demo/running",
    "q/demo/dead",
    "q/demo/batches?all=1",
    "q/demo/leases",
    "q/demo/hosts",
    "q/demo/audit",
    "hosts",
    "audit",
    "tokens",
    "about",
)


@pytest.fixture(scope="module")
def full(dashboard: Dashboard) -> Iterator[dict[str, str]]:
    """A queue with a task in each state, a batch, a named lease, and a real worker; gives ids by state."""
    dashboard.jobq("push", "--batch", "s7", "--num-retries", "0", "--grid", "n=1..3", "-c", "test $PARAM_n -ne 2")
    ids = {
        "dead": dashboard.push("echo CUDA error: out of memory >&2; exit 137", "--num-retries", "0"),
        "succeeded": dashboard.push("echo hello"),
        "running": dashboard.push(f"{sys.executable} -m jobq progress 0.4 'epoch 3'; echo working; sleep 1000"),
        "scheduled": dashboard.push("true", "--delay", "2h"),
    }
    dashboard.jobq("lease", "run", "nightly", "--", "true")
    with dashboard.worker("-n", "4", "--visibility-timeout", "4s"):
        for state, task_id in ids.items():
            dashboard.wait_for(task_id, state)
        yield ids


def _violations(page: Page) -> list[str]:
    """Return what axe finds, best practices included; no page lets it in, so it comes by the debugger."""
    page.evaluate(_AXE)
    found = page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
    )
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


@pytest.mark.slow("a browser beside a service and workers")
@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        pytest.param(path, scheme, marks=[] if (path, scheme) in _BY_DAY else pytest.mark.night)
        for path in (*_PAGES, "t/dead", "t/succeeded", "t/running", "t/scheduled")
        for scheme in ("light", "dark")
    ],
)
def test_axe_finds_nothing(full: dict[str, str], opened: Opened, path: str, scheme: str) -> None:
    page = opened(_address(path, full), color_scheme=scheme)
    assert _violations(page) == []


@pytest.mark.parametrize("path", [*_PAGES, "t/dead", "t/running"])
def test_on_a_phone_nothing_stands_out_at_the_side(full: dict[str, str], opened: Opened, path: str) -> None:
    page = opened(_address(path, full), viewport=_PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= _PHONE["width"]
    assert _violations(page) == []


def _address(path: str, ids: dict[str, str]) -> str:
    return f"/ui/q/demo/t/{ids[path.removeprefix('t/')]}" if path.startswith("t/") else f"/ui/{path}"


@pytest.mark.parametrize("has_scripts", [True, False])
def test_a_walk_from_the_overview_to_the_output_of_a_task(
    full: dict[str, str], opened: Opened, has_scripts: bool
) -> None:
    page = opened("/ui/", java_script_enabled=has_scripts)
    page.get_by_role("link", name="demo", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("demo")
    row = page.get_by_role("row").filter(has_text="CUDA error: out of memory")
    expect(row).to_contain_text("137")
    row.get_by_role("link").first.click()
    expect(page.get_by_text("1 match.")).to_be_visible()
    page.get_by_role("link", name=re.compile(r"^[0-9a-f]{8}\.\.")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Task {full['dead']}")
    expect(page.locator("pre.runs")).to_have_text("echo CUDA error: out of memory >&2; exit 137")
    expect(page.locator("pre.output").first).to_contain_text("CUDA error: out of memory")
    expect(page.get_by_role("row").filter(has_text="exit code 137")).to_be_visible()


@pytest.mark.parametrize("has_scripts", [True, False])
@pytest.mark.usefixtures("full")
def test_the_filter_of_tasks(opened: Opened, has_scripts: bool) -> None:
    page = opened("/ui/q/demo/tasks", java_script_enabled=has_scripts)
    page.get_by_label("State").select_option("scheduled")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("scheduled")
    page.get_by_label("What runs").fill("*nothing like it*")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("No task matches")).to_be_visible()
    page.get_by_role("link", name="Clear the filter").click()
    page.get_by_label("Older than").fill("soon")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("is not a duration")).to_be_visible()
    page.go_back()
    page.get_by_label("Exit", exact=True).fill("137")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_label("Exit", exact=True)).to_have_value("137")


def test_what_runs_tells_how_far_it_is(full: dict[str, str], opened: Opened) -> None:
    page = opened("/ui/q/demo/running")
    row = page.locator("tbody tr")
    expect(row).to_contain_text("40 %")
    expect(row).to_contain_text("epoch 3")
    expect(row).to_contain_text("left")
    page.goto(page.url.replace("/running", f"/t/{full['running']}"))
    expect(page.locator("pre.output")).to_contain_text("working")


@pytest.mark.usefixtures("full")
def test_who_sees_numbers_alone_sees_no_task(opened: Opened) -> None:
    page = opened("/ui/q/demo", "watch")
    expect(page.locator("dl.counts")).to_contain_text("dead")
    assert "CUDA" not in page.content()
    expect(page.get_by_role("link", name="Tasks")).to_have_count(0)
    expect(page.get_by_role("button", name="Pause the queue")).to_have_count(0)


def test_an_error_says_what_and_what_to_do(opened: Opened) -> None:
    page = opened("/ui/")
    page.goto(page.url + "q/no-such-queue", wait_until="load")
    expect(page.locator("main")).to_contain_text("no-such-queue")
    expect(page.get_by_role("link", name="All queues")).to_be_visible()
    assert _violations(page) == []
