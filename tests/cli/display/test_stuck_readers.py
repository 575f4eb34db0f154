"""Who reads standard error and stops reading stops nothing: no event loop writes to a stream (P1, L4)."""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Final

import pytest

from jobq.task import Task
from tests.cli.conftest import DEADLINE_SECONDS, Jobq, eventually

pytestmark = pytest.mark.check

_SMALL: Final = 4096


@pytest.fixture
def stuck() -> Iterator[int]:
    """Return the writing end of a pipe that is full, and that nobody reads."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _SMALL)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * _SMALL)
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


def _ended(process: subprocess.Popen[bytes], code: int) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_SECONDS) == code


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], DEADLINE_SECONDS)[0]
    return bytes(process.stdout.readline())


def test_a_service_answers_though_nobody_reads_its_audit(jobq: Jobq, stuck: int) -> None:
    process = jobq.start("serve", "demo", "--port", "0", "--json", "--no-token", stderr=stuck)
    url = json.loads(_first_line(process))["url"]
    for number in range(3):
        body = json.dumps({"tasks": [{"command": "true", "id": f"{number}"}]}).encode()
        request = urllib.request.Request(
            f"{url}/api/tasks?queue=demo", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
            assert answer.status == 202
    _ended(process, 0)


@pytest.mark.parametrize(
    "arguments",
    [("demo", "ui", "--no-open"), ("serve", "demo", "--port", "0")],
    ids=" ".join,
)
def test_what_serves_begins_and_ends_though_nobody_reads(jobq: Jobq, stuck: int, arguments: tuple[str, ...]) -> None:
    jobq.fill()
    process = jobq.start(*arguments, stderr=stuck)
    assert _first_line(process)
    _ended(process, 0)


def test_a_command_under_a_lease_goes_on_though_nobody_reads_that_it_waits(jobq: Jobq, stuck: int) -> None:
    jobq.fill()
    holder = jobq.start(
        "demo", "lease", "run", "nightly", "--", "sh", "-c", "echo held; until test -e go; do sleep 0.02; done"
    )
    assert _first_line(holder) == b"held\n"
    waiter = jobq.start("demo", "lease", "run", "nightly", "--", "echo", "mine", stderr=stuck)
    assert waiter.stdout is not None
    assert not select.select([waiter.stdout], [], [], 1.0)[0], "it is held"
    (jobq.folder / "go").touch()
    assert _first_line(waiter) == b"mine\n"
    assert waiter.wait(DEADLINE_SECONDS) == 0


def test_a_worker_works_though_nobody_reads(jobq: Jobq, stuck: int) -> None:
    jobq.fill(*(Task.new(command="echo loud >&2; echo", id=f"{number}") for number in range(5)))
    process = jobq.start("demo", "worker", "--log-format", "json", stdout=stuck, stderr=stuck)
    assert process.wait(DEADLINE_SECONDS) == 0
    assert jobq("demo", "size", "--json").objects[0]["visible"] == 0


def test_what_a_library_logs_stops_nothing_either(stuck: int) -> None:
    """asyncio says that no descriptor is left, and had no handler but Python's own, which writes in the loop."""
    program = (
        "import logging, os\n"
        "from jobq.cli.display import terminal\n"
        "with terminal.by_thread():\n"
        "    logging.getLogger('asyncio').error('x' * 10_000)\n"
        "    os.write(1, b'went on\\n')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stuck) as process:
        assert _first_line(process) == b"went on\n"
        assert process.wait(DEADLINE_SECONDS) == 0


def test_a_browser_that_does_not_end_stops_no_dashboard(jobq: Jobq) -> None:
    """One in the terminal waited for the page, and the page for it."""
    (jobq.folder / "browser").write_text("touch $0-runs; until [ -e $0-ends ]; do sleep 0.05; done")
    browser = {"BROWSER": f"sh {jobq.folder}/browser %s"}
    jobq("demo", "create")
    process = jobq.start("ui", "demo", "--port", "0", env=browser, stdin=subprocess.DEVNULL)
    link = _first_line(process).decode().strip()
    eventually((jobq.folder / "browser-runs").exists)
    with urllib.request.urlopen(link, timeout=DEADLINE_SECONDS) as answer:
        assert answer.status == 200
    (jobq.folder / "browser-ends").touch()
    _ended(process, 0)
