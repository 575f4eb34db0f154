"""A host that froze this machine: its clocks stood still, so every lease is unknown (rules.md 1.3, rules 7 and 8).

No test can freeze its host; what a guest sees of it is a wall clock that somebody sets right. The guardian here is the
real one, in a process whose `time.time` jumps when a file appears.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq.lease import keeper
from jobq.run.guardian import freeze, protocol
from tests.guardian.peer import SPAWN, Peer
from tests.guardian.stage import ENV, boottime, hostile, living, marker, state, until

JUMPING = """
import os, runpy, sys, time
wall, gettime, file = time.time, time.clock_gettime, sys.argv.pop(1)
ahead = lambda: float(open(file).read() or 0) if os.path.exists(file) else 0
time.time = lambda: wall() + ahead()
slept = lambda: ahead() if os.path.exists(file + ".slept") else 0
time.clock_gettime = lambda clock: gettime(clock) + (slept() if clock == time.CLOCK_BOOTTIME else 0)
runpy.run_module("jobq.run.guardian", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    return tmp_path / "jump"


@pytest.fixture
def peer(clock: Path) -> Iterator[Peer]:
    peer = Peer(sys.executable, "-P", "-c", JUMPING, str(clock))
    yield peer
    peer.close()


def jump(clock: Path, seconds: float) -> None:
    """Write it whole: the guardian looks at any moment."""
    new = clock.with_suffix(".new")
    new.write_text(str(seconds))
    new.rename(clock)


def spawn(peer: Peer, number: int, mark: str, **more: Any) -> None:
    message = {**SPAWN, "id": number, "argv": hostile("setsid", mark), "env": ENV, **more}
    null = os.open("/dev/null", os.O_RDWR)
    peer.say(protocol.encode(message), (null, null))
    os.close(null)


def test_p1_after_a_freeze_the_guardian_kills_what_runs_under_a_lease(peer: Peer, clock: Path) -> None:
    """Also with the worker stopped, as this peer, which says nothing, may be: a tree lived 6 s past its lease."""
    leased, free = marker(), marker()
    spawn(peer, 1, leased, deadline=boottime() + 1000)
    assert peer.hear()["op"] == "started"
    spawn(peer, 2, free)
    assert peer.hear()["op"] == "started"
    until(lambda: len(living(leased)) == len(living(free)) == 2)
    struck = time.monotonic()
    jump(clock, 3600)
    ended = peer.hear()
    assert (ended["op"], ended["id"], ended["killed"]) == ("ended", 1, "deadline")
    assert time.monotonic() - struck < 2
    assert living(leased) == []
    assert len(living(free)) == 2, "it has no lease"
    spawn(peer, 3, leased, deadline=boottime() + 1000)  # of a worker that has looked at its clocks, too
    assert peer.hear()["op"] == "started"


@pytest.mark.parametrize("slept", [False, True])
def test_where_the_store_is_this_machines_file_only_the_time_that_it_runs_counts(
    peer: Peer, clock: Path, slept: bool
) -> None:
    """Rule 12: a suspend, or a step of the wall clock, kills nothing; the deadline does, by the store's clock."""
    mark = marker()
    peer.say(protocol.encode({"op": "clock", "id": 0}))
    spawn(peer, 1, mark, deadline=time.monotonic() + 1000)
    assert peer.hear()["op"] == "started"
    until(lambda: len(living(mark)) == 2)
    if slept:
        Path(f"{clock}.slept").touch()
    jump(clock, 3600)
    peer.say(protocol.encode({"op": "ping", "id": 0}))
    assert peer.hear()["op"] == "pong", "it has looked at its clocks meanwhile"
    assert len(living(mark)) == 2
    peer.say(protocol.encode({"op": "extend", "id": 1, "deadline": time.monotonic() + 0.2}))
    ended = peer.hear()
    assert (ended["op"], ended["killed"]) == ("ended", "deadline")
    assert living(mark) == []


def test_p1_what_was_sent_before_a_freeze_is_not_started_after_it(peer: Peer, clock: Path) -> None:
    mark = marker()
    os.kill(peer.popen.pid, signal.SIGSTOP)
    until(lambda: state(peer.popen.pid) == "T")
    spawn(peer, 1, mark, deadline=boottime() + 1000)
    jump(clock, 3600)
    os.kill(peer.popen.pid, signal.SIGCONT)
    failed = peer.hear()
    assert (failed["op"], failed["errno"]) == ("failed", errno.ECANCELED)
    assert living(mark) == []


@pytest.mark.parametrize("seconds", [0.9, -3600.0])
def test_a_clock_that_is_set_right_by_a_little_or_back_kills_nothing(peer: Peer, clock: Path, seconds: float) -> None:
    mark = marker()
    spawn(peer, 1, mark, deadline=boottime() + 1000)
    assert peer.hear()["op"] == "started"
    until(lambda: len(living(mark)) == 2)
    jump(clock, seconds)
    for _ in range(3):  # three turns of the loop have looked
        peer.say(protocol.encode({"op": "ping", "id": 0}))
        assert peer.hear()["op"] == "pong"
    assert len(living(mark)) == 2


def test_guardian_and_keeper_have_one_rule() -> None:
    assert (freeze.AHEAD_SECONDS, freeze.AHEAD_RATE) == (keeper.FREEZE_SECONDS, keeper.FREEZE_RATE)
