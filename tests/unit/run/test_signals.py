"""What a worker makes of signals (architecture 6, Stopping), with real ones sent to this process."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from jobq.run.process import OBEYED
from jobq.run.stopping import Stopping
from jobq.run.worker.signals import SignalHeard, heard_by


@pytest.fixture
async def heard() -> AsyncIterator[tuple[SignalHeard, Stopping]]:
    stopping = Stopping()
    with heard_by(stopping) as heard:
        yield heard, stopping


async def told(number: signal.Signals, what: Callable[[], bool]) -> None:
    os.kill(os.getpid(), number)
    async with asyncio.timeout(5):
        while not what():
            await asyncio.sleep(0)


async def test_the_first_signal_decides_the_exit_code(heard: tuple[SignalHeard, Stopping]) -> None:
    seen, stopping = heard
    await told(signal.SIGTERM, stopping.working.is_set)
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0.01)  # for the loop to hear it; that nothing changes is the subject
    assert seen.stopped_by is signal.SIGTERM


async def test_one_ctrl_c_after_a_sigterm_leaves_the_grace(heard: tuple[SignalHeard, Stopping]) -> None:
    seen, stopping = heard
    await told(signal.SIGTERM, stopping.working.is_set)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.01)  # as above
    assert not stopping.at_once.is_set()
    assert seen.stopped_by is signal.SIGTERM


async def test_what_ended_the_tasks_is_told_and_not_what_drained_before(heard: tuple[SignalHeard, Stopping]) -> None:
    _, stopping = heard
    await told(signal.SIGUSR1, stopping.receiving.is_set)
    await told(signal.SIGTERM, stopping.working.is_set)
    assert "SIGTERM" in stopping.cause


async def test_the_second_ctrl_c_ends_the_grace(heard: tuple[SignalHeard, Stopping]) -> None:
    _, stopping = heard
    await told(signal.SIGINT, stopping.working.is_set)
    assert not stopping.at_once.is_set()
    await told(signal.SIGINT, stopping.at_once.is_set)


@pytest.mark.parametrize("first_to_leave", [0, 1])
async def test_several_workers_of_a_program_hear_a_signal_and_the_last_gives_it_back(first_to_leave: int) -> None:
    """The later one took it alone, and left it to nobody at its end: SIGTERM ended the other one no more."""
    before = signal.getsignal(signal.SIGTERM)
    both = [Stopping(), Stopping()]
    entered = [heard_by(stopping) for stopping in both]
    for each in entered:
        each.__enter__()
    await told(signal.SIGUSR1, lambda: all(stopping.receiving.is_set() for stopping in both))
    entered[first_to_leave].__exit__(None, None, None)
    await told(signal.SIGTERM, both[1 - first_to_leave].working.is_set)
    assert not both[first_to_leave].working.is_set()
    entered[1 - first_to_leave].__exit__(None, None, None)
    assert signal.getsignal(signal.SIGTERM) is before


async def test_what_was_blocked_is_heard_on_entering_and_blocked_again_after() -> None:
    """The guardian starts a worker with them blocked; what comes at its very end must not change its exit code."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OBEYED)
    try:
        # To this thread: pytest-xdist has others, which do not block it.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        stopping = Stopping()
        with heard_by(stopping):
            async with asyncio.timeout(5):
                await stopping.receiving.wait()
        assert set(OBEYED) <= signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_pause_that_ends_leaves_the_cause_of_the_drain() -> None:
    stopping = Stopping()
    stopping.drain("SIGUSR1")
    stopping.pause("Preempt", 1.0)
    stopping.resume()
    stopping.drain("nothing is left to do")
    assert stopping.cause == "SIGUSR1"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 7)])
async def test_s11_a_forked_child_has_its_signals_to_itself(
    heard: tuple[SignalHeard, Stopping], number: signal.Signals, code: int
) -> None:
    """A task that ended its own child process (multiprocessing forks) stopped the worker, and the child lived on."""
    seen, stopping = heard
    ready, said = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with suppress(KeyboardInterrupt):
                os.write(said, b"x")
                while True:  # not signal.pause(): one that comes just before it would be waited for, for ever
                    time.sleep(0.01)
        finally:
            os._exit(7)
    assert os.read(ready, 1) == b"x"
    os.kill(child, number)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == code
    await asyncio.sleep(0.05)  # for the loop to hear what it is not to hear
    assert (seen.stopped_by, stopping.working.is_set()) == (None, False)
    await told(signal.SIGTERM, stopping.working.is_set)  # and its own it hears
    os.close(ready)
    os.close(said)
