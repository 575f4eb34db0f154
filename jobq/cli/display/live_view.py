"""The live view of a worker: what its slots do, how fast it goes, how long the queue is. It decides nothing.

The event loop is asked twice a second for a small snapshot; drawing and writing happen in the writer's thread. The
queue is counted over a connection of the view's own: a slow answer delays nobody.
"""

import asyncio
import itertools
import logging
import os
import stat
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

from jobq.backend import Backend, QueueStats
from jobq.cli.display import slot_table, terminal
from jobq.cli.display.live_frame import Draw
from jobq.cli.display.running_batch import RunningBatch
from jobq.cli.display.time_left import TimeLeft
from jobq.events import Event, Events
from jobq.formats import strict_json
from jobq.run.process.usage import UsageSampler, Watch
from jobq.settings import Settings
from jobq.spec import parse, resolve
from jobq.task import Task

_log: Final = logging.getLogger(__name__)
Show = Callable[[Draw], None]
REFRESH_SECONDS: Final = 0.5
_ASK_SECONDS: Final = 5.0  # between two looks at the queue, at least: some services bill each
_ASK_HERE_SECONDS: Final = 0.5  # likewise, where nothing is billed: what waits agrees with what is done
_HERE: Final = frozenset({"embedded", "sqlite"})
_ASK_SHARE: Final = 0.05  # of the time that a look may take: a slow service is asked less often
_ANSWER_SECONDS: Final = 30.0
_OLD_SECONDS: Final = 15.0  # from when on the age of an answer is shown
_RATE_SECONDS: Final = 60.0
_LEAVE_SECONDS: Final = 1.0  # how long the view's connection is waited for at the end
_OUT: Final = 1
_ERR: Final = 2
_FAILURES: Final = frozenset({"task.failed", "task.timeout", "task.crashed"})


def why_not(*, log_format: str = "auto") -> str | None:
    """Return why standard error can show no live view, or None when it can."""
    if terminal.verbosity() is terminal.Verbosity.QUIET:
        return "--quiet shows nothing but errors"
    if log_format == "json":
        return "the log is JSON"
    if not os.isatty(_ERR):
        return "standard error is no terminal"
    if os.environ.get("TERM", "") in {"", "dumb"}:
        return "the terminal cannot move its cursor (TERM)"
    return None


def is_wanted(view: str, *, log_format: str = "auto") -> bool:
    """Return whether to show it; warns when it was asked for and cannot be.

    Args:
        view: live, lines, or auto: live wherever that is possible and standard output is no pipe. What reads the pipe
            (`| tee log`) may write to the same terminal, and would be wiped out by the next frame.
        log_format: of the worker's log.
    """
    if view == "lines" or (view == "auto" and _is_pipe(_OUT)):
        return False
    reason = why_not(log_format=log_format)
    if reason is not None and view == "live":
        terminal.warn(f"no live view: {reason}")
    return reason is None


def _is_pipe(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class TaskCounts:
    """Counts what becomes of tasks, by a worker's events."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self.given_up = 0
        self.stopping = ""  # why it takes no new tasks
        self._before: deque[tuple[float, int]] = deque()  # when, and how many had ended by then

    def on_event(self, event: Event) -> None:
        """Count; a subscriber of `jobq.events.Events`."""
        if event.name == "task.succeeded":
            self.done += 1
        elif event.name in _FAILURES:
            self.failed += 1
        elif event.name == "task.dead_lettered":
            self.given_up += 1
        elif event.name == "worker.draining":
            self.stopping = str(event.fields.get("cause") or "draining")

    def rate(self, now: float) -> float:
        """Return how many attempts ended in a second, over the last minute; to be asked regularly.

        Args:
            now: time.monotonic().
        """
        ended = self.done + self.failed
        while len(self._before) > 1 and self._before[1][0] <= now - _RATE_SECONDS:
            self._before.popleft()
        self._before.append((now, ended))
        then, count = self._before[0]
        return (ended - count) / (now - then) if now > then else 0.0

    def line(self, now: float) -> str:
        """Return one line."""
        rate = self.rate(now)
        pace = f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
        given_up = f" ({self.given_up} given up)" if self.given_up else ""
        line = f"{self.done} done, {self.failed} failed{given_up}, {pace}"
        return f"{line}; ending: {self.stopping}" if self.stopping else line


class Depth:
    """Looks how long the queue is, every now and then.

    Args:
        connect: makes a backend for this alone.
        ask_seconds: between two looks, at least.
        batch: is let look, too; what it sees stands on a line of its own.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Backend]],
        ask_seconds: float = _ASK_SECONDS,
        batch: RunningBatch | None = None,
    ) -> None:
        self._batch = batch
        self._connect = connect
        self._ask_seconds = ask_seconds
        self._stats: QueueStats | None = None
        self._asked = 0.0  # time.monotonic() of what is known
        self._trouble = ""
        self._time_left = TimeLeft()

    async def watch(self) -> None:
        """Look for ever; no answer, no connection and no sense in an answer are shown and harm nobody."""
        while True:
            began = time.monotonic()
            try:
                async with self._connect() as backend:
                    while True:
                        began = time.monotonic()
                        async with asyncio.timeout(_ANSWER_SECONDS):
                            self._stats = await backend.stats()
                            if self._batch is not None:
                                await self._batch.look(backend)
                        self._asked, self._trouble = time.monotonic(), ""
                        self._time_left.note(self._asked, self._stats.unfinished)
                        await self._pause(began)
            except Exception as error:  # noqa: BLE001 - whatever it is, the work does not depend on it (L4)
                self._trouble = type(error).__name__  # its text may be long, and hold anything
            await self._pause(began)

    async def _pause(self, began: float) -> None:
        await asyncio.sleep(max(self._ask_seconds, (time.monotonic() - began) / _ASK_SHARE))

    def line(self, now: float) -> str:
        """Return one line; `now` is time.monotonic()."""
        if self._stats is None:
            return f"queue: unknown ({self._trouble})" if self._trouble else "queue: ..."
        stats = self._stats
        counts = {"visible": stats.visible, "leased": stats.leased, "scheduled": stats.scheduled, "dead": stats.dead}
        shown = [f"{'?' if n is None else n} {name}" for name, n in counts.items() if n or name == "visible"]
        age = now - self._asked
        late = f", {age:.0f}s ago" if self._trouble or age >= _OLD_SECONDS else ""
        left = "" if late else self._time_left.text()
        return f"queue: {', '.join(shown)}{late}{left}" + (f" ({self._trouble})" if self._trouble else "")


class LiveView:
    """Takes the snapshots.

    Args:
        show: takes how to draw the newest; `FrameWriter.show`.
        sampler: knows what runs, and what that uses.
        slots: how many tasks may run at once.
        below: returns the lines below the table; gets time.monotonic().
    """

    def __init__(
        self,
        show: Show,
        *,
        sampler: UsageSampler,
        slots: int,
        below: Callable[[float], Sequence[str]],
    ) -> None:
        self._show = show
        self._sampler = sampler
        self._slots = slots
        self._below = below
        self._running: dict[Watch, tuple[int, str]] = {}  # its slot, and what it is

    async def run(self) -> None:
        """Show it for ever."""
        while True:
            now = time.monotonic()
            self._show(partial(slot_table.lines, self._slots, self._busy(now), self._below(now)))
            await asyncio.sleep(REFRESH_SECONDS)

    def _busy(self, now: float) -> list[slot_table.Slot]:
        """Return what runs; a task stays in its slot, and a new one takes the first that is free."""
        watched = self._sampler.watched
        self._running = {watch: held for watch, held in self._running.items() if watch in watched}
        taken = {number for number, _ in self._running.values()}
        free = (number for number in itertools.count(1) if number not in taken)
        for watch in sorted(watched - self._running.keys(), key=lambda watch: watch.started):
            self._running[watch] = next(free), _what(watch.task)[: slot_table.MOST_SHOWN]
        slots = [
            slot_table.Slot(
                number=slot,
                task_id=watch.task.id if watch.task else "?",
                what=what,
                age_seconds=now - watch.started,
                reading=watch.reading,
            )
            for watch, (slot, what) in self._running.items()
        ]
        return sorted(slots, key=lambda slot: slot.number)


def _what(task: Task | None) -> str:
    if task is None:
        return ""
    if task.command is not None:
        return task.command
    if task.argv is not None:
        return " ".join(task.argv)
    return f"{task.call} {strict_json.dumps(task.kwargs or {}).decode()}"


@asynccontextmanager
async def of_worker(
    show: Show, events: Events, spec: str, settings: Settings, sampler: UsageSampler
) -> AsyncIterator[None]:
    """Show the view of a worker while entered.

    Args:
        show: as for `LiveView`.
        events: of the worker.
        spec: its queue.
        settings: its settings.
        sampler: its sampler.
    """
    pause = _ASK_HERE_SECONDS if parse(spec).scheme in _HERE else _ASK_SECONDS
    batch = RunningBatch(lambda: [watch.task.id for watch in sampler.watched if watch.task is not None])
    progress, depth = TaskCounts(), Depth(lambda: resolve(spec, settings), pause, batch)
    events.subscribe(progress.on_event)
    view = LiveView(
        show,
        sampler=sampler,
        slots=settings.num_workers,
        below=lambda now: (progress.line(now), depth.line(now), *batch.lines()),
    )
    async with beside(view.run(), depth.watch()):
        yield


@asynccontextmanager
async def beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do these while entered, and wait for them a moment at the end; what goes wrong in them is logged only (L4)."""
    helpers = [asyncio.create_task(_watched(work), name="view") for work in works]
    try:
        yield
    finally:
        for helper in helpers:
            helper.cancel()
        if helpers:
            await asyncio.wait(helpers, timeout=_LEAVE_SECONDS)  # what hangs in a closing connection is left behind


async def _watched(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 - logged with its traceback; the tasks matter more than their picture
        _log.exception("the live view has ended")
