"""rules.md 3, A6: no task finds in /proc what its worker, or another one of its user, signs in with."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobq.backend import Backend
from jobq.task import Task
from tests.cli.conftest import Jobq, eventually
from tests.guardian.stage import worker_below

pytestmark = [pytest.mark.check, pytest.mark.skipif(sys.platform != "linux", reason="macOS has no /proc")]

CANARY = f"canary-{secrets.token_hex(8)}"  # of this run of the tests: others may start workers just now
SECRETS = {"AZURE_CLIENT_SECRET": CANARY, "JOBQ_HTTP_TOKEN": CANARY}
# Root reads what it likes, unless it was started without the right to: CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON.
DROP = "[ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) for capability in (19, 21, 38)]"
AS_ANYBODY = (sys.executable, "-c", f"import ctypes, os, sys; {DROP}; os.execv(sys.argv[1], sys.argv[1:])")
HERE = Path(__file__).parent
LIBRARY = (
    "import asyncio, jobq\n"
    "async def main():\n"
    "    async with jobq.connect('demo') as queue: await queue.worker()\n"
    "asyncio.run(main())\n"
)


def snooping(folder: Path, *looks: str) -> Task:
    return Task.new(argv=[sys.executable, str(HERE / "snooper.py"), CANARY, str(folder), *looks])


def started(jobq: Jobq, *argv: str, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [*AS_ANYBODY, sys.executable, *argv],
        env=jobq.environment | (env or {}),
        cwd=jobq.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    jobq.running.append(process)
    return process


@pytest.mark.parametrize(
    "words",
    [("-m", "jobq", "demo", "worker", "--guardian", guardian) for guardian in ("on", "off")] + [("-c", LIBRARY)],
    ids=["guardian", "no guardian", "library"],
)
def test_a6_a_task_cannot_read_the_environment_of_its_worker(jobq: Jobq, words: tuple[str, ...]) -> None:
    jobq.fill(snooping(jobq.folder, "5"))
    said = started(jobq, *words, env=SECRETS).communicate(timeout=60)[0].decode()
    assert json.loads((jobq.folder / "seen").read_text()) == [], said


@contextmanager
def neighbour(jobq: Jobq) -> Iterator[list[str]]:
    """Let a task of another worker look all the while; yield what is then the list of those whom it found out."""

    async def push(backend: Backend) -> None:
        await backend.create()
        await backend.push([snooping(jobq.folder)])

    jobq.inside(push, "other")
    other = started(jobq, "-m", "jobq", "other", "worker")
    eventually((jobq.folder / "looking").exists)
    seen: list[str] = []
    try:
        yield seen
    finally:
        (jobq.folder / "stop").touch()
        said = other.communicate(timeout=60)[0].decode()
    assert other.returncode == 0, said
    seen.extend(json.loads((jobq.folder / "seen").read_text()))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("command", ("demo", "worker", "--guardian", "on")),
        ("command", ("demo", "worker", "--guardian", "off")),
        ("library", ("demo",)),
    ],
    ids=["guardian", "no guardian", "library"],
)
@pytest.mark.parametrize("starts", [2, pytest.param(10, marks=pytest.mark.night)])
def test_a6_what_a_worker_starts_shows_its_secrets_at_no_moment(
    jobq: Jobq, how: str, words: tuple[str, ...], starts: int
) -> None:
    with neighbour(jobq) as seen:
        for _ in range(starts):
            jobq.fill(Task.new(command="true"))
            process = started(jobq, str(HERE / "unseen_start.py"), how, *words)
            said = process.communicate(json.dumps(SECRETS).encode(), timeout=60)[0].decode()
            assert process.returncode == 0, said
    assert seen == []


def test_a6_a_worker_that_is_started_again_has_its_variables_and_shows_none(jobq: Jobq) -> None:
    def runs(name: str) -> None:  # in the queue that JOBQ_HOME says, which is not shown either
        jobq.fill(Task.new(argv=["touch", str(jobq.folder / name)]))
        eventually((jobq.folder / name).exists)

    with neighbour(jobq) as seen:
        process = started(jobq, str(HERE / "unseen_start.py"), "restarted", "demo", "worker", "--idle-timeout", "60s")
        assert process.stdin is not None
        process.stdin.write(json.dumps(SECRETS).encode())
        process.stdin.close()
        process.stdin = None
        for number in range(3):
            runs(f"ran {number}")
            os.kill(worker_below(process.pid), signal.SIGKILL)
        runs("ran last")
        process.terminate()
        said = process.communicate(timeout=60)[0].decode()
    assert seen == [], said
