"""Who lives: hears of each birth through a FIFO, and of each death through a pidfd.

A process's death is noted when this program has seen its pidfd become readable, by CLOCK_BOOTTIME read then: an
upper bound of the moment of death, late by as long as this event loop took to look. Its own last stamp is the lower
bound.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.overlap.store_truth import Attempt
from tests.overlap.task_program import ROLES


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class News:
    """Wakes those who wait for something to become so; no sleeping."""

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def ring(self) -> None:
        self._came.set()
        self._came = asyncio.Event()

    async def until(self, condition: Callable[[], object], seconds: float = 30.0) -> bool:
        """Return True once it is so, False when it is not so in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._came.wait()
        return bool(condition())


@dataclass
class Life:
    """One process of a tree; `seen_dead` is boottime in seconds."""

    pid: int
    role: str
    pidfd: int = -1
    seen_dead: float | None = None


@dataclass
class Tree:
    """All processes of one attempt that said they live.

    Attributes:
        attempt: which.
        token: its fencing token, as it was told.
        keeper: the number of the leader's parent: the guardian, or a worker without one.
        lives: its processes, by their numbers.
    """

    attempt: Attempt
    token: str
    keeper: int
    lives: dict[int, Life] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all its processes are there and alive."""
        return len(self.lives) == len(ROLES) and all(life.seen_dead is None for life in self.lives.values())

    @property
    def seen_dead(self) -> float | None:
        """When the last of it was seen dead; None while any lives."""
        moments = [life.seen_dead for life in self.lives.values()]
        return None if None in moments else max(moment for moment in moments if moment is not None)


class Observer:
    """Watches the processes of one campaign.

    Args:
        folder: of the campaign; each of its tasks has it among its arguments.
        news: rung at each birth and death.
    """

    def __init__(self, folder: Path, news: News) -> None:
        self.trees: dict[Attempt, Tree] = {}
        self._mark = os.fsencode(folder)
        self._news = news
        self._unread = b""
        (folder / "lives").mkdir()
        (folder / "ends").mkdir()
        os.mkfifo(folder / "births")
        self._births = os.open(folder / "births", os.O_RDWR | os.O_NONBLOCK)  # a writer too: it never ends
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._births, self._hear)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.remove_reader(self._births)
        os.close(self._births)
        for life in self._living():
            signal.pidfd_send_signal(life.pidfd, signal.SIGKILL)  # of a campaign that failed
            self._forget(life)

    def of(self, keeper: int) -> list[Tree]:
        """Return the whole and living trees below a guardian."""
        return [tree for tree in self.trees.values() if tree.keeper == keeper and tree.is_whole]

    def living(self) -> int:
        return len(self._living())

    def _living(self) -> list[Life]:
        return [life for tree in self.trees.values() for life in tree.lives.values() if life.pidfd >= 0]

    def _hear(self) -> None:
        *lines, self._unread = (self._unread + os.read(self._births, 65536)).split(b"\n")
        for line in lines:
            task, number, token, role, pid, keeper = line.decode().split()
            attempt = Attempt(task, int(number))
            tree = self.trees.setdefault(attempt, Tree(attempt, token, int(keeper)))
            life = tree.lives[int(pid)] = Life(int(pid), role)
            self._watch(life)
        self._news.ring()

    def _watch(self, life: Life) -> None:
        try:
            life.pidfd = os.pidfd_open(life.pid)
        except ProcessLookupError:
            life.seen_dead = boottime()
            return
        try:  # the handle is open: if the number is another's by now, the one that was born is dead
            words = Path(f"/proc/{life.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            words = []
        if self._mark in words:
            self._loop.add_reader(life.pidfd, self._died, life)
        else:
            life.seen_dead = boottime()
            os.close(life.pidfd)
            life.pidfd = -1

    def _died(self, life: Life) -> None:
        life.seen_dead = boottime()
        self._forget(life)
        self._news.ring()

    def _forget(self, life: Life) -> None:
        self._loop.remove_reader(life.pidfd)
        os.close(life.pidfd)
        life.pidfd = -1


def carriers(folder: Path) -> list[int]:
    """Return every process that has a campaign's folder among its arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended while we looked
            if os.fsencode(folder) in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found
