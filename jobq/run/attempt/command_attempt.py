"""One started command: its end, what it printed, what it wrote as its result, and the outcome that comes of these."""

import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from jobq.formats import sizes
from jobq.journal.records import MAX_VALUE_BYTES
from jobq.racing import never
from jobq.run.attempt.checkpoints import AttemptCheckpoints
from jobq.run.attempt.result import with_written
from jobq.run.process.oom import OomWitness
from jobq.run.process.output import OutputReader
from jobq.run.process.spawner import ExitStatus, Process, StatusLost
from jobq.run.process.task_folder import read_result
from jobq.run.process.usage import UsageReading, Watch
from jobq.settlement import TAIL_CHARACTERS
from jobq.task import Outcome, OutcomeKind, Usage

DRAIN_SECONDS: Final = 1.0  # how long output is awaited after the leader's exit; an escaped child may hold the pipe


class CommandRunning:
    """One started process, its output and what it used; `CommandRunner.launch` makes it."""

    def __init__(
        self,
        process: Process,
        output: OutputReader,
        watch: Watch,
        oom: OomWitness,
        result_file: Path | None,
        on_close: Callable[[], None],
        checkpoints: AttemptCheckpoints | None = None,
    ) -> None:
        self.pid = process.pid
        self.checkpoints = checkpoints
        self._process = process
        self._output = output
        self._watch = watch
        self._oom = oom
        self._result_file = result_file
        self._on_close = on_close
        self._was_killed = False  # by us
        self._started = time.monotonic()
        self._duration: float | None = None
        self._outcome: Outcome | None = None

    def has_exited(self) -> bool:
        """Return whether it has ended by itself by now."""
        return self._process.has_exited()

    async def exited(self) -> None:
        """Wait until nothing of it runs; what it prints is passed on from now on, for its start is known by now."""
        self._output.begin()
        with suppress(StatusLost):  # `ended` says it
            await self._process.wait()
        if self._duration is None:
            self._duration = time.monotonic() - self._started

    async def ended(self) -> Outcome:
        """Wait until its output is read, and say how it ended."""
        if self._outcome is None:
            await self.exited()
            duration = self._duration or 0.0
            try:
                status = await self._process.wait()
            except StatusLost as error:
                # Nobody can say that its tree is dead (a guardian that died, survivors not yet killed): nothing is
                # settled, so the task starts again only when the lease has run out (P1). Its crash is counted then.
                self._oom.end()
                usage = self._watch.end(None)
                return Outcome(kind=OutcomeKind.LOCK_LOST, detail=str(error), duration=duration, usage=usage)
            self._oom.end()
            usage = self._watch.end(status)
            outcome = _outcome_of(status, duration, usage)
            if not (self._was_killed or status.overdue):
                detail = self._oom.explain(status, outcome.detail)
                outcome = replace(outcome, detail=detail, out_of_memory=self._oom.is_certain)
            await self._output.drain(DRAIN_SECONDS)
            tail = self._output.tail
            outcome = replace(outcome, output_tail=tail.text(TAIL_CHARACTERS), output=tail.text())
            self._outcome = with_written(outcome, self._result())
        return self._outcome

    def _result(self) -> bytes | None:
        return None if self._result_file is None else read_result(self._result_file, MAX_VALUE_BYTES)

    def reading(self) -> UsageReading | None:
        """Return the last sample of what its tree uses."""
        return self._watch.reading

    def output_end(self, max_bytes: int) -> str:
        """Return the end of what it has printed."""
        return self._output.tail.text(max_bytes)

    def over_limit(self) -> Awaitable[str]:
        """Return what is done once it uses more memory than it may, and says so."""
        return never() if self._watch.limit_bytes is None else self._over_limit()

    async def _over_limit(self) -> str:
        in_use = await self._watch.over_limit()
        limit = self._watch.limit_bytes or 0
        return f"killed: {sizes.show(in_use)} in use, over its memory limit of {sizes.show(limit)}"

    def terminate(self) -> None:
        """Send SIGTERM to its group."""
        self._process.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill its tree."""
        self._was_killed = True
        self._process.kill()

    async def close(self) -> None:
        """Free everything; kills what still runs."""
        try:
            self.kill()
            await self.ended()
            self._result()  # removed also if the status was lost
            self._output.close()
        finally:
            self._on_close()


def _outcome_of(status: ExitStatus, duration: float, usage: Usage) -> Outcome:
    if status.overdue:
        return Outcome(
            kind=OutcomeKind.LOCK_LOST,
            detail="killed by the guardian at its lease's deadline: the worker was too late",
            signal=status.signal,
            duration=duration,
            usage=usage,
        )
    if status.survivors and status.exit_code != 0:
        # Given back now it could start beside what still lives of it; it was killed, so it is no failure either.
        return Outcome(
            kind=OutcomeKind.LOCK_LOST,
            detail=f"{status.survivors} processes could not be killed yet: it comes back when its lease runs out",
            exit_code=status.exit_code,
            signal=status.signal,
            duration=duration,
            usage=usage,
        )
    if status.signal is not None:
        return Outcome(
            kind=OutcomeKind.CRASHED,
            detail=f"ended by signal {status.signal}",
            signal=status.signal,
            duration=duration,
            usage=usage,
        )
    kind = OutcomeKind.SUCCEEDED if status.exit_code == 0 else OutcomeKind.FAILED
    return Outcome(
        kind=kind,
        detail=f"exit code {status.exit_code}",
        exit_code=status.exit_code,
        duration=duration,
        usage=usage,
    )
