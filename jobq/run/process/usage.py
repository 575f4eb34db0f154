"""What a task's whole tree uses, sampled for all tasks of a worker at once, and whether it uses too much memory.

What the figures are, and are not:
    - CPU seconds count what lives at a sample, with all that it has waited for. Missed are a child that its parent
      never waits for (SIGCHLD ignored) and what an escapee that outlives the leader does after the last sample.
    - Resident memory is summed over the tree, so a page that several processes share counts once for each of them; a
      peak between two samples is seen only where one process alone made it (the kernel keeps the leader's own).
    - Processes are the most that lived at one sample.
A memory limit is compared with proportional shares instead, where those can be read: shared pages count once.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from jobq.run.process import process_table
from jobq.run.process.process_table import ProcessTree
from jobq.run.process.spawner import ExitStatus, Process
from jobq.task import Task, Usage

CPU_SHARE: Final = 0.005  # of one core, that sampling may use
SHORTEST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
LIMIT_SHORTEST_PAUSE_SECONDS: Final = 0.25  # memory fills by gigabytes a second: where a limit is set, look oftener
LIMIT_LONGEST_PAUSE_SECONDS: Final = 2.0
FIRST_SAMPLE_SECONDS: Final = 0.1  # after a start: a task of a second gets a sample, one of milliseconds costs none
CONFIRM_SECONDS: Final = 5.0  # how long proportional shares may take to read; another task's sample waits meanwhile
_LONGEST_DOUBT_SECONDS: Final = 10.0
_log: Final = logging.getLogger(__name__)
_T = TypeVar("_T")
_Number = TypeVar("_Number", int, float)


class UsageReading(NamedTuple):
    """What a tree used at its last sample.

    Attributes:
        at: when that was, by time.monotonic().
        cpu_seconds: so far.
        cores: how many it kept busy since the sample before, or since its start.
        rss_bytes: resident now.
        processes: alive now.
    """

    at: float
    cpu_seconds: float
    cores: float
    rss_bytes: int
    processes: int


class Watch:
    """The measure of one attempt, made by `UsageSampler.watch`.

    Args:
        process: the leader.
        limit_bytes: what the tree may use; None = anything.
        forget: called at its end.
        task: what it was started for.

    Attributes:
        started: by time.monotonic().
        reading: the last sample; None before the first.
    """

    def __init__(
        self,
        process: Process,
        limit_bytes: int | None,
        forget: Callable[["Watch"], None],
        task: Task | None = None,
    ) -> None:
        self.process: Final = process
        self.limit_bytes: Final = limit_bytes
        self.task: Final = task
        self.started: Final = time.monotonic()
        self.reading: UsageReading | None = None
        self.samples = 0
        self._forget = forget
        self._created: float | None = None
        self._usage = Usage()
        self._over = asyncio.Event()
        self._in_use_bytes = 0
        self._confirm_after = 0.0  # time.monotonic()
        self._confirm_above_bytes = 0

    async def over_limit(self) -> int:
        """Wait until the tree uses more than its limit, and return how many bytes; never returns without a limit."""
        await self._over.wait()
        return self._in_use_bytes

    def end(self, status: ExitStatus | None) -> Usage:
        """Stop measuring and return what was used; repeatable.

        Args:
            status: what the kernel says of the leader; None = unknown.
        """
        self._forget(self)
        if status is not None:
            self._usage = Usage(
                cpu_seconds=_most(self._usage.cpu_seconds, status.cpu_seconds),
                max_rss_bytes=_most(self._usage.max_rss_bytes, status.max_rss_bytes),
                processes=self._usage.processes,
            )
        return self._usage

    def take(self, tree: ProcessTree) -> bool:
        """Add a sample; return False when it may be of another process that has taken over the number."""
        # Not ended now, so the number was its own all the while. The first sample's time of birth holds for the rest.
        if self.process.has_exited() or self._created not in (None, tree.created):
            return False
        self._created = tree.created
        self.samples += 1
        self.reading = self._read(tree)
        self._usage = Usage(
            cpu_seconds=_most(self._usage.cpu_seconds, tree.cpu_seconds),
            max_rss_bytes=_most(self._usage.max_rss_bytes, tree.rss_bytes),
            processes=max(self._usage.processes, len(tree.rss_of)),
        )
        return True

    def _read(self, tree: ProcessTree) -> UsageReading:
        now = time.monotonic()
        before = self.reading or UsageReading(self.started, 0.0, 0.0, 0, 0)
        cores = max(0.0, tree.cpu_seconds - before.cpu_seconds) / max(now - before.at, 0.01)
        return UsageReading(now, tree.cpu_seconds, cores, tree.rss_bytes, len(tree.rss_of))

    def is_suspect(self, tree: ProcessTree) -> bool:
        """Return whether the tree may be over its limit, and it is time to look closer."""
        if self.limit_bytes is None or tree.rss_bytes <= self.limit_bytes or self._over.is_set():
            return False
        return time.monotonic() >= self._confirm_after or tree.rss_bytes > self._confirm_above_bytes

    def judge(self, tree: ProcessTree, in_use_bytes: int, cost_seconds: float) -> None:
        """Compare with the limit what a closer look has found, and what that look has cost."""
        if self.limit_bytes is None or self.process.has_exited():
            return
        if in_use_bytes > self.limit_bytes:
            self._in_use_bytes = in_use_bytes
            self._over.set()
            return
        # The next look waits for its share of the CPU, unless so much came that it may be over by now.
        self._confirm_after = time.monotonic() + min(cost_seconds / CPU_SHARE, _LONGEST_DOUBT_SECONDS)
        self._confirm_above_bytes = tree.rss_bytes + self.limit_bytes - in_use_bytes


class UsageSampler:
    """Measures the trees of all attempts of one worker, with at most `CPU_SHARE` of a core.

    A look that costs more CPU than expected makes the pause after it longer. Only the longest pauses bound that: 30 s,
    and 2 s where there is a limit. Nothing runs while nothing is watched.

    Args:
        limit_bytes: what each tree may use at most; None = anything.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit_bytes: Final = limit_bytes
        self.cpu_seconds = 0.0  # spent on sampling so far
        self.passes = 0
        self._watched: set[Watch] = set()
        self._added = asyncio.Event()
        self._unseen_since: float | None = None  # when the oldest watch without a sample came; monotonic
        self._busy_since = 0.0  # when the first of those came that are watched without a break; monotonic
        self._last_end = 0.0
        self._last_cost = 0.0
        self._is_failing = False

    @property
    def watched(self) -> frozenset[Watch]:
        """What is measured now."""
        return frozenset(self._watched)

    def watch(self, process: Process, task: Task | None = None, limit_bytes: int | None = None) -> Watch:
        """Measure a process that was just started, and all below it, until `Watch.end`.

        Args:
            process: the leader.
            task: what it was started for.
            limit_bytes: what it may use; the smaller of that and of what each tree may use counts.
        """
        limit = min((each for each in (limit_bytes, self._limit_bytes) if each is not None), default=None)
        watch = Watch(process, limit, self._watched.discard, task)
        now = time.monotonic()
        if not self._watched:
            self._busy_since = self._unseen_since = now
        elif self._unseen_since is None:
            self._unseen_since = now
        self._watched.add(watch)
        self._added.set()
        return watch

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            self._added.clear()
            if not self._watched:
                await self._added.wait()
            elif (pause := self._due() - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._added.wait()
            else:
                await self._pass()

    def _due(self) -> float:
        """Return when the next pass is, by time.monotonic()."""
        affordable = self._last_cost / CPU_SHARE
        if all(watch.limit_bytes is None for watch in self._watched):
            pause = min(max(affordable, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        else:
            pause = min(max(affordable, LIMIT_SHORTEST_PAUSE_SECONDS), LIMIT_LONGEST_PAUSE_SECONDS)
        due = max(self._last_end, self._busy_since) + pause
        if self._unseen_since is not None:
            due = min(due, max(self._unseen_since + FIRST_SAMPLE_SECONDS, self._last_end + affordable))
        return due

    async def _pass(self) -> None:
        self._unseen_since = None
        spent = self.cpu_seconds
        try:
            await self._sample(set(self._watched))
        except Exception:  # noqa: BLE001 - whatever it is, the next look may see; a task's fate is not at stake (L4)
            if not self._is_failing:
                _log.exception("the usage of tasks cannot be measured; it is tried again, and logged no more")
            self._is_failing = True
        else:
            self._is_failing = False
        self.passes += 1
        self._last_end = time.monotonic()
        self._last_cost = self.cpu_seconds - spent

    async def _sample(self, watches: set[Watch]) -> None:
        look = partial(process_table.trees, [watch.process.pid for watch in watches])
        trees, cost = await _in_thread(look)
        began = time.thread_time()
        suspects: list[tuple[Watch, ProcessTree]] = []
        for watch in watches & self._watched:  # those that have ended meanwhile want no more of it
            tree = trees.get(watch.process.pid)
            if tree is not None and watch.take(tree) and watch.is_suspect(tree):
                suspects.append((watch, tree))
        self.cpu_seconds += cost + time.thread_time() - began
        await asyncio.gather(*(self._confirm(watch, tree) for watch, tree in suspects))

    async def _confirm(self, watch: Watch, tree: ProcessTree) -> None:
        in_use, cost = tree.rss_bytes, 0.0
        # A process may hold its memory map locked for as long as it likes: no answer in time counts as unreadable.
        with suppress(TimeoutError):
            async with asyncio.timeout(CONFIRM_SECONDS):
                in_use, cost = await _in_thread(partial(process_table.pss_bytes, tree.rss_of))
        self.cpu_seconds += cost
        if watch in self._watched:
            watch.judge(tree, in_use, cost)


async def _in_thread(work: Callable[[], _T]) -> tuple[_T, float]:
    """Return the result and the CPU seconds it cost; a daemon thread, since a read of /proc may hang for ever."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[_T, float]] = loop.create_future()

    def deliver(result: tuple[_T, float] | BaseException) -> None:
        if done.done():
            return
        if isinstance(result, BaseException):
            done.set_exception(result)
        else:
            done.set_result(result)

    def run() -> None:
        result: tuple[_T, float] | BaseException
        try:
            result = work(), time.thread_time()
        except BaseException as error:  # noqa: BLE001 - passed on
            result = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, result)

    threading.Thread(target=run, name="jobq usage", daemon=True).start()
    return await done


def _most(one: _Number | None, other: _Number | None) -> _Number | None:
    return max((value for value in (one, other) if value is not None), default=None)
