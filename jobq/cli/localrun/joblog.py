"""The job log of `jobq run`: one line of tab-separated fields for each finished task, as GNU parallel's --joblog."""

import logging
import os
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from jobq.backend import Delivery
from jobq.cli.display.format_task import as_shell, what_runs
from jobq.cli.localrun.run_store import NamedRun
from jobq.errors import ConfigurationError, MalformedTask
from jobq.run.attempt.supervisor import DeliveryReport
from jobq.submit.argument_template import PREFIX as ARGUMENT_PREFIX
from jobq.submit.command_template import PREFIX
from jobq.task import Outcome, OutcomeKind

_log: Final = logging.getLogger("jobq.run")
HEADER: Final = ("Seq", "Host", "Starttime", "JobRuntime", "Exitval", "Signal", "Command")
_ESCAPES: Final = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
_SIGNALED: Final = 128
_TIMED_OUT: Final = 124  # as timeout(1)
_NOT_STARTED: Final = 127
_UNKNOWN: Final = -1


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A task that is done or given up.

    Attributes:
        line: its line of the input; 0 = unknown.
        id: the task's.
        failed: whether it was given up.
        command: what ran, as a shell would read it.
        started: wall time in seconds since the epoch.
        seconds: how long it ran.
        exit_value: its exit code; what a shell would say where there is none; never 0 for one that failed.
        signal: the number of the signal that ended it, 0 = none did.
        detail: what happened, for people.
        last_line: the last line of its output.
    """

    line: int
    id: str
    failed: bool
    command: str
    started: float
    seconds: float
    exit_value: int
    signal: int
    detail: str
    last_line: str

    @classmethod
    def of(cls, delivery: Delivery, report: DeliveryReport, *, failed: bool, line: int, now: float) -> Self:
        """Return what is known of a delivery that was settled just `now`."""
        outcome = report.outcome or Outcome(kind=OutcomeKind.CRASHED)
        written = outcome.output_tail.rstrip().splitlines()
        return cls(
            line=line,
            id=report.task_id,
            failed=failed,
            command=_command(delivery),
            started=now - outcome.duration,
            seconds=outcome.duration,
            exit_value=_exit_value(outcome, failed=failed),
            signal=outcome.signal or 0,
            detail=outcome.detail or str(getattr(report.verdict, "description", "")),
            last_line=written[-1] if written else "",
        )


def _command(delivery: Delivery) -> str:
    try:
        task = delivery.task
    except MalformedTask:
        return what_runs(delivery.body)
    if task.command is not None:  # what a sweep brings is shown; other variables may be secrets (A5)
        return as_shell(
            task.command, {name: task.env[name] for name in task.env if name.startswith((PREFIX, ARGUMENT_PREFIX))}
        )
    if task.argv is not None:
        return shlex.join(task.argv)
    return what_runs(delivery.body)


def _exit_value(outcome: Outcome, *, failed: bool) -> int:
    if outcome.kind is OutcomeKind.TIMED_OUT:
        return _TIMED_OUT
    if outcome.exit_code is not None and not (failed and outcome.exit_code == 0):
        return outcome.exit_code
    if outcome.signal:
        return _SIGNALED + outcome.signal
    return _NOT_STARTED if outcome.start_failed else _UNKNOWN


def check_place(path: Path, source: str | None, named: NamedRun | None) -> None:
    """Raise ConfigurationError for a job log that would destroy what the run reads or keeps.

    Args:
        path: of the job log.
        source: the file of commands; `-` = standard input.
        named: the run, where its queue is kept.
    """
    if named is not None:
        named.refuse_own_file(path, "--joblog ")
    if source is not None and path.is_file() and os.path.samefile(path, 0 if source == "-" else source):  # noqa: PTH121 - a descriptor has no Path
        raise ConfigurationError(f"--joblog {path} is the file of commands, which it would destroy; name another")


class JobLog:
    """Appends a line for each finished task, written at once; a file that cannot be written any more is warned about.

    Args:
        path: the file.
        append: go on with what is there; else it is made anew.

    Raises:
        ConfigurationError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, append: bool) -> None:
        self._path = path
        self._host = socket.gethostname()
        try:
            self._file = path.open("a+b" if append else "w+b", buffering=0)
            self._go_on()
        except OSError as error:
            raise ConfigurationError(f"cannot write the job log {path}: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def add(self, task: Finished) -> None:
        """Write one line."""
        fields = (task.line, self._host, f"{task.started:.3f}", f"{task.seconds:.3f}", task.exit_value, task.signal)
        self._write(*map(str, fields), task.command.translate(_ESCAPES))

    def _go_on(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        if not size:
            self._write(*HEADER)
            return
        self._file.seek(size - 1)
        if self._file.read(1) != b"\n":  # torn by a kill
            self._file.write(b"\n")

    def _write(self, *fields: str) -> None:
        if self._file.closed:
            return
        try:
            self._file.write("\t".join(fields).encode("utf-8", "backslashreplace") + b"\n")
        except OSError as error:
            self._file.close()
            _log.warning("the job log %s ends here: %s", self._path, error.strerror)
