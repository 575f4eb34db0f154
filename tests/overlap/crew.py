"""A worker below its guardian, as the campaign sees it: two processes that take orders and say what befalls them."""

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.overlap.observer import News

ROOT = Path(__file__).parents[2]
_WORKER = (sys.executable, "-m", "tests.overlap.worker_program")
_GUARDIAN = (sys.executable, "-P", "-m", "jobq.run.guardian", "--restart", "0", "--")
_ENDING_SECONDS = 20.0


class Member:
    """One worker and its guardian, started as `jobq worker` starts them.

    Attributes:
        said: all lines of the worker.
        keeper: the number of the process that is the parent of its tasks' leaders.
        has_ended: whether the worker's end of the pipe is closed: the guardian and the worker are gone.
        was_ended: whether that was asked for.
    """

    def __init__(self, process: asyncio.subprocess.Process, news: News) -> None:
        self.said: list[dict[str, Any]] = []
        self.keeper = process.pid
        self.has_ended = False
        self.was_ended = False
        self._worker = -1
        self._process = process
        self._news = news
        self._reading = asyncio.create_task(self._read(), name=f"lines of worker {process.pid}")

    @classmethod
    async def hired(cls, folder: Path, slots: int, rule: str, news: News) -> Self:
        """Start one; return once it takes orders."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
        with (folder / "workers.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(() if rule == "no-guardian" else _GUARDIAN),
                *(*_WORKER, str(folder), str(slots), rule),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**environment, "PYTHONPATH": str(ROOT)},
                process_group=0,
            )
        member = cls(process, news)
        ready = await member.heard("ready")
        assert ready, f"a worker did not start; see {folder / 'workers.log'}"
        member._worker = os.pidfd_open(ready["pid"])
        return member

    def signal_worker(self, number: signal.Signals) -> None:
        self.was_ended = self.was_ended or number == signal.SIGKILL
        signal.pidfd_send_signal(self._worker, number)

    def kill_guardian(self) -> None:
        self.was_ended = True
        self._process.kill()  # our child, not reaped yet

    async def order(self, do: str, answer: str, **what: object) -> dict[str, Any]:
        """Give an order and return its answer."""
        before = len(self.said)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps({'do': do, **what})}\n".encode())
        found = await self.heard(answer, since=before)
        assert found, f"no answer to {do}"
        return found

    async def heard(self, said: str, *, since: int = 0, seconds: float = 30.0) -> dict[str, Any] | None:
        """Wait for a line of this kind after the first `since` ones; None when it does not come."""
        await self._news.until(lambda: self.lines(said, since) or self.has_ended, seconds)
        return next(iter(self.lines(said, since)), None)

    def lines(self, said: str, since: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.said[since:] if line["said"] == said]

    async def ended(self) -> None:
        """Return once guardian and worker are gone."""
        assert await self._news.until(lambda: self.has_ended, _ENDING_SECONDS), f"{self.keeper} did not end"
        await self._process.wait()
        await self._reading
        if self._worker >= 0:
            os.close(self._worker)
            self._worker = -1

    async def dismiss(self) -> None:
        """Ask it to stop, as a service manager would, and wait for that; kill what does not."""
        if not self.has_ended:
            self.was_ended = True
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            if not await self._news.until(lambda: self.has_ended, _ENDING_SECONDS):
                self.signal_worker(signal.SIGKILL)
        await self.ended()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.said.append(json.loads(line))
            self._news.ring()
        self.has_ended = True
        self._news.ring()
