"""`jobq healthcheck` against a real worker: alive, stopped, killed, gone; and what a probe costs."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobq.task import Task
from jobq.telemetry.health import HealthFile
from jobq.telemetry.probe import Unhealthy, check
from tests.cli.conftest import Jobq, eventually


def _worker(jobq: Jobq, file: Path) -> "subprocess.Popen[bytes]":
    jobq.fill(Task.new(command="sleep 60"))
    worker = jobq.start("demo", "worker", env={"JOBQ_HEALTH_FILE": str(file)})
    eventually(lambda: file.exists() and json.loads(file.read_text())["busy"] == 1)
    return worker


def test_a_working_worker_is_healthy_and_leaves_no_file(jobq: Jobq) -> None:
    file = jobq.folder / "health"
    environment = {"JOBQ_HEALTH_FILE": str(file)}
    worker = _worker(jobq, file)
    told = jobq("healthcheck", "--json", env=environment).objects[0]
    assert told["healthy"] is True
    assert (told["state"], told["busy"], told["slots"]) == ("working", 1, 1)
    worker.send_signal(signal.SIGTERM)
    worker.wait(20)
    assert not file.exists()
    gone = jobq("healthcheck", "--json", env=environment, code=1).objects[0]
    assert gone["healthy"] is False
    assert list(jobq.folder.glob(".health*")) == []


def test_a_worker_that_is_killed_or_stopped_is_told_once_its_word_is_old(jobq: Jobq) -> None:
    file = jobq.folder / "health"
    jobq.fill()
    worker = jobq.start("demo", "worker", "--idle-timeout", "60s", env={"JOBQ_HEALTH_FILE": str(file)})
    eventually(file.exists)
    worker.kill()  # the watcher, and with it all the rest
    worker.wait(20)
    said = json.loads(file.read_text())
    said["boottime"] -= 31
    file.write_text(json.dumps(said))
    result = jobq("healthcheck", env={"JOBQ_HEALTH_FILE": str(file)}, code=1)
    assert "it is stopped, blocked or gone" in result.err


def test_without_a_file_it_says_what_to_set(jobq: Jobq) -> None:
    assert "set JOBQ_HEALTH_FILE" in jobq("healthcheck", code=3).err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"boottime": "x"}',
        "\x00" * 10,
        "[" * 4000,
        '{"boottime": 1, "state": "working", "busy": 0, "slots": 1e999}',
    ],
)
def test_garbage_is_unhealthy(tmp_path: Path, text: str) -> None:
    (tmp_path / "health").write_text(text)
    with pytest.raises(Unhealthy, match="no health file"):
        check(tmp_path / "health")


def test_a_moment_that_is_no_number_is_unhealthy(tmp_path: Path) -> None:
    (tmp_path / "health").write_text('{"boottime": NaN, "state": "working", "busy": 0, "slots": 1}')
    with pytest.raises(Unhealthy, match="stopped, blocked or gone"):
        check(tmp_path / "health")


def test_what_was_written_before_this_boot_is_unhealthy(tmp_path: Path) -> None:
    later = time.clock_gettime(time.CLOCK_BOOTTIME) + 1000
    (tmp_path / "health").write_text(json.dumps({"boottime": later, "state": "working", "busy": 0, "slots": 1}))
    with pytest.raises(Unhealthy, match="before this machine started"):
        check(tmp_path / "health")


async def test_a_worker_that_ends_leaves_the_word_of_another_that_has_the_same_file(tmp_path: Path) -> None:
    """As where an old worker drains while its successor has begun: the successor would be called dead."""
    path = tmp_path / "health"
    old, new = HealthFile(path, lambda: ("draining", 1, 1)), HealthFile(path, lambda: ("working", 0, 1))
    running = asyncio.create_task(old.run())
    while not path.exists():
        await asyncio.sleep(0)
    new.write()
    running.cancel()
    await asyncio.wait([running])
    assert check(path).state == "working"


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    health = HealthFile(tmp_path / "missing" / "health", lambda: ("working", 0, 1))
    health.write()
    health.write()
    assert len(caplog.records) == 1
    assert "probes will fail" in caplog.text


def test_a_probe_imports_nothing_heavy(tmp_path: Path) -> None:
    """As containers run it: `jobq healthcheck`, the file by its variable. Each probe pays for its imports."""
    file = tmp_path / "health"
    HealthFile(file, lambda: ("working", 1, 2)).write()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "jobq", "healthcheck"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"JOBQ_HEALTH_FILE": str(file)},
    )
    assert re.fullmatch(r"working: 1 of 2 slots busy, \d+ s ago\n", done.stdout)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "jobq.telemetry.probe" in imported
    heavy = ("click", "asyncio", "pydantic", "aiohttp", "azure", "psutil", "logging", "dataclasses", "jobq.cli")
    assert not [name for name in imported if name.startswith(heavy)]


def test_a_probe_says_the_same_with_options_and_without(jobq: Jobq) -> None:
    file = jobq.folder / "health"
    environment = {"JOBQ_HEALTH_FILE": str(file)}
    for code in (1, 0):
        short = jobq("healthcheck", env=environment, code=code)
        long = jobq("healthcheck", "--file", str(file), env=environment, code=code)
        said = [re.sub(r"\d+ s ago", "N s ago", one.out) + one.err for one in (short, long)]
        assert said[0] == said[1]
        HealthFile(file, lambda: ("working", 1, 2)).write()


def test_a11_a_link_that_stands_beside_the_file_leads_nowhere(tmp_path: Path) -> None:
    """Whoever may write into the folder made one of the name that was known, to a file of ours."""
    own, file = tmp_path / "own", tmp_path / "health"
    own.write_text("kept")
    for name in (file, tmp_path / f".health.{os.getpid()}"):
        name.symlink_to(own)
    health = HealthFile(file, lambda: ("working", 1, 2))
    health.write()
    assert own.read_text() == "kept"
    assert json.loads(file.read_text())["slots"] == 2
    assert file.stat().st_mode & 0o777 == 0o644
    assert {path.name for path in tmp_path.iterdir()} == {"own", "health", f".health.{os.getpid()}"}
