"""`jobq ui`: entered by a link that is good once; for one's own eyes, on this machine alone."""

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.cli.conftest import eventually
from tests.dashboard.support import Dashboard
from tests.fork_server import forked
from tests.service.server import HttpServer

pytestmark = pytest.mark.check


@dataclass
class _Running:
    process: "subprocess.Popen[str]"
    dashboard: Dashboard
    link: str

    @property
    def once(self) -> str:
        return self.link.rpartition("once=")[2]

    def stop(self) -> int:
        """End it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def enter(self) -> tuple[int, str]:
        """Use the link as the page behind it does."""
        answer = self.dashboard.ask("POST", "/ui/enter", fields={"once": self.once})
        return answer.status, answer.headers.get("set-cookie", "").partition(";")[0]


def _started(folder: Path, *options: str) -> _Running:
    spec = f"sqlite://{folder}/jobs.db/demo"
    server = HttpServer(spec, folder)
    made = Dashboard(server, spec, folder)
    made.inside(lambda backend: backend.create())
    process = forked.Popen[str](
        [sys.executable, "-m", "jobq", "ui", spec, "--json", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=made.environment | {"BROWSER": f"{sys.executable} {folder}/open.py %s"},
        text=True,
    )
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    server.port = int(said["url"].split(":")[2].partition("/")[0])
    return _Running(process, made, said["link"])


@pytest.fixture
def ui(tmp_path: Path) -> Iterator[_Running]:
    found = _started(tmp_path, "--no-open")
    yield found
    assert found.stop() == 0


def test_the_link_is_good_once(ui: _Running) -> None:
    status, cookie = ui.enter()
    assert status == 303
    assert ui.dashboard.ask("GET", "/ui/q/demo", cookie=cookie).status == 200
    assert ui.enter()[0] == 401
    assert ui.dashboard.ask("GET", "/ui/").status == 303, "who has no session signs in"


def test_nothing_but_the_dashboard_is_there(ui: _Running) -> None:
    assert ui.dashboard.ask("GET", "/").headers["location"] == "/ui/"
    for path in ("/api/queues", "/openapi.json", "/metrics"):
        assert ui.dashboard.ask("GET", path).status == 404


def test_a_browser_enters_by_the_link_and_nobody_by_the_same_again(ui: _Running, browser: Browser) -> None:
    """With scripts the button is pressed by itself; without, by hand."""
    context = browser.new_context(locale="en-US")
    page = context.new_page()
    page.goto(ui.link)
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    expect(page.get_by_role("link", name="demo", exact=True)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    context.close()
    context = browser.new_context(locale="en-US", java_script_enabled=False)
    page = context.new_page()
    page.goto(ui.link)
    page.get_by_role("button", name="Open the dashboard").click()
    expect(page.get_by_text("this link was used")).to_be_visible()
    context.close()


def test_two_side_by_side_keep_their_sessions_apart(ui: _Running, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = _started(folder, "--no-open")
    try:
        (_, one), (_, two) = ui.enter(), other.enter()
        assert one.partition("=")[0] != two.partition("=")[0]
        assert ui.dashboard.ask("GET", "/ui/", cookie=one).status == 200
        foreign = one.partition("=")[0] + "=" + two.partition("=")[2]
        assert ui.dashboard.ask("GET", "/ui/", cookie=foreign).status == 303
    finally:
        other.stop()


def test_read_only_changes_nothing(tmp_path: Path) -> None:
    found = _started(tmp_path, "--no-open", "--read-only")
    try:
        _, cookie = found.enter()
        form = found.dashboard.ask("GET", "/ui/q/demo", cookie=cookie).form_token
        fields = {"form": form, "action": "pause"}
        assert found.dashboard.ask("POST", "/ui/q/demo/act", cookie=cookie, fields=fields).status == 403
    finally:
        found.stop()


def test_the_browser_is_led_there_by_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    """So the secret is in no process list."""
    (tmp_path / "open.py").write_text(
        f"import sys, pathlib; pathlib.Path({str(tmp_path / 'opened')!r}).write_text(sys.argv[1])"
    )
    found = _started(tmp_path)
    try:
        opened = tmp_path / "opened"
        eventually(lambda: opened.exists() and opened.read_text())
        assert found.once not in opened.read_text()
        file = Path(opened.read_text().removeprefix("file://"))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert found.link in file.read_text()
    finally:
        found.stop()


def test_a_place_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "jobq", "ui", f"sqlite://{tmp_path}/none.db/demo", "--no-open", "--json"]
    made = Dashboard(HttpServer("", tmp_path), "", tmp_path)
    done = forked.run(words, env=made.environment, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode != 0
    assert "does not exist" in done.stderr
    assert not (tmp_path / "none.db").exists()
