"""A worker that ends with 0 leaves nothing behind in silence (L1): leases of the dead are waited for, others said."""

import asyncio
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from jobq.backend import Backend
from jobq.run.spawn.choose_spawner import is_possible
from jobq.task import Task
from tests.cli.conftest import Jobq, eventually
from tests.guardian.stage import worker_below

pytestmark = pytest.mark.check

LEASE = timedelta(seconds=3)
NOW = timedelta(0)


def _last_line(jobq: Jobq, *options: str) -> dict[str, object]:
    last: dict[str, object] = json.loads(jobq("demo", "worker", "--log-format", "json", *options).err.splitlines()[-1])
    assert last["event"] == "worker.stopped"
    return last


LONG = ("demo", "worker", "--visibility-timeout", "10m", "--stop-grace", "0s")


@pytest.mark.skipif(not is_possible(), reason="only who has a guardian is known to be dead")
def test_s3_what_a_living_worker_holds_stays_its_own(jobq: Jobq) -> None:
    (id_,) = jobq.fill(Task.new(command="touch begun; until [ -e end ]; do sleep 0.05; done"))
    lives = jobq.start(*LONG, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually((jobq.folder / "begun").exists)
    os.kill(worker_below(lives.pid), signal.SIGSTOP)  # it says nothing, but it is there
    idle = jobq.start(*LONG, "--idle-timeout", "1h", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with pytest.raises(subprocess.TimeoutExpired):
        idle.wait(2.5)  # looks every second
    (jobq.folder / "end").touch()
    os.kill(worker_below(lives.pid), signal.SIGCONT)
    assert lives.wait(20) == 0
    assert [each["attempt"] for each in jobq("demo", "status", id_, "--json").objects[0]["attempts"]] == [1]


@contextmanager
def _held(jobq: Jobq) -> Iterator[None]:
    """Hold one task's lease, and renew it, as a worker does that lives."""
    ended, holds = threading.Event(), threading.Event()

    async def hold(backend: Backend) -> None:
        (held,) = await backend.receive(1, LEASE, NOW)
        while not ended.is_set():
            await held.renew(LEASE)
            holds.set()
            await asyncio.sleep(0.3)

    holding = threading.Thread(target=jobq.inside, args=(hold,))
    holding.start()
    try:
        assert holds.wait(20)
        yield
    finally:
        ended.set()
        holding.join()


def test_l1_a_lease_that_nobody_renews_is_waited_for(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"), Task.new(command="true"))

    async def vanish(backend: Backend) -> None:
        await backend.receive(1, LEASE, NOW)

    jobq.inside(vanish)
    last = _last_line(jobq)
    assert (last["succeeded"], last["exit_code"]) == (2, 0)
    assert "detail" not in last


def test_a_lease_that_is_renewed_is_not_waited_for_and_is_said(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"), Task.new(command="true"))
    with _held(jobq):
        last = _last_line(jobq)
    assert (last["succeeded"], last["exit_code"]) == (1, 0)
    assert str(last["detail"]).startswith("left in the queue: 1 leased by ")


@pytest.mark.parametrize(("hours", "form"), [(1, "%H:%M:%S"), (48, "%Y-%m-%d %H:%M+05:00")])
def test_what_is_due_later_is_said_and_when(jobq: Jobq, hours: int, form: str) -> None:
    first = math.floor(time.time()) + 3600 * hours
    jobq.fill(*[Task.new(command="true", not_before=first + later) for later in (7200, 0)])
    due = time.strftime(form, time.gmtime(first + 5 * 3600))
    jobq.environment["TZ"] = "Etc/GMT-5"
    assert _last_line(jobq)["detail"] == f"left in the queue: 2 scheduled, the first at {due}"


def test_l1_what_is_due_within_the_idle_timeout_is_waited_for(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true", not_before=time.time() + 1))
    last = _last_line(jobq, "--idle-timeout", "2s")
    assert (last["succeeded"], "detail" in last) == (1, False)
