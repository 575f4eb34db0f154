"""A task as lists and pages show it: made of its record, without its body and the values of its variables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from jobq.errors import MalformedTask
from jobq.formats.lazy_dataclass import dataclass
from jobq.journal.error_grouping import error_of, exit_of
from jobq.journal.records import Attempt, Beat, TaskRecord, TaskState, host_of
from jobq.journal.what_runs import what_runs
from jobq.task import Budgets, Counters, Task

MOST_BODY_BYTES: Final = 16 * 1024  # of a task that is read for a list: one of 1 MiB must not hold it up
MOST_SHOWN: Final = 64 * 1024  # characters of what one task runs, on its own page
MOST_LISTED: Final = 2000  # characters of it in a list


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """A task in a list. Times are wall times in seconds since the epoch.

    Attributes:
        id: of the task.
        state: where it is.
        attempt: how often it has been handed out.
        at: since when it is so; of a scheduled one, when it is due; of a ready one when it was made, where the store
            knows no better; None = nobody knows.
        created: when it was made.
        runs: what it runs, 2000 characters at most; "" = it has ended, is malformed, or too large (`body_bytes`).
        program: the first word of what ran last.
        malformed: why it is no task; "" = it is one.
        body_bytes: how large it is as stored; 0 = it has ended.
        host: where it runs, or ran last; "" = nowhere, or that is not known.
        holder: HOST:PID of the worker that has it.
        leased_at: when that took it.
        lease_left: seconds until its lease runs out; negative = it ran out so long ago.
        beat: how the running attempt is, without its output.
        exit: how its last attempt ended, of a dead letter by its description: an exit code, `signal 9`, or "".
        outcome: in one word.
        reason, error: of a dead letter: why, and its last words, folded (`jobq.journal.error_grouping`).
        batch: the name of the batch that it is of.
        cancel_requested: whether it is to end.
    """

    id: str
    state: TaskState
    attempt: int
    at: float | None = None
    created: float | None = None
    runs: str = ""
    program: str = ""
    malformed: str = ""
    body_bytes: int = 0
    host: str = ""
    holder: str | None = None
    leased_at: float | None = None
    lease_left: float | None = None
    beat: Beat | None = None
    exit: str = ""
    outcome: str = ""
    reason: str = ""
    error: str = ""
    batch: str | None = None
    cancel_requested: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskDetail:
    """All that a page shows of one task.

    Attributes:
        row: as in a list, but what it runs has up to MOST_SHOWN characters.
        attempts: those that were recorded, in order.
        output: the end of what the running attempt had printed at its last heartbeat.
        checkpoint: what was saved last.
        description: of a dead letter; ends with the tail of its output.
        variables: their names.
        cwd, timeout, priority, budgets, counters, on_exit, not_before: as of `jobq.task.Task`; None = it has ended, or
            is malformed.
        signed_by: the ids of the keys that sign it, unchecked.
    """

    row: TaskRow
    attempts: Sequence[Attempt] = ()
    output: str = ""
    checkpoint: str | None = None
    description: str = ""
    variables: Sequence[str] = ()
    cwd: str | None = None
    timeout: float | None = None
    priority: int | None = None
    budgets: Budgets | None = None
    counters: Counters | None = None
    on_exit: Sequence[str] = ()
    not_before: float | None = None
    params: Mapping[str, str | int | float] | None = None
    signed_by: Sequence[str] = ()


def row_of(
    record: TaskRecord, body_bytes: int | None = None, most_shown: int = MOST_LISTED, *, asks_error: bool = True
) -> TaskRow:
    """Return the row of a record.

    Args:
        record: with an empty body where that was too large to be read.
        body_bytes: how large it is as stored; None = the record has all of it.
        most_shown: characters of what it runs; 0 = its body is not looked at, for who only counts.
        asks_error: whether the last words of a dead letter are folded.
    """
    task, malformed = _task_in(record) if most_shown else (None, "")
    is_leased = record.state in (TaskState.RUNNING, TaskState.EXPIRED)
    last = None if is_leased else record.last
    created = None if task is None else task.created
    return TaskRow(
        id=record.id,
        state=record.state,
        attempt=record.attempt,
        at=created if record.at is None else record.at,
        created=created,
        runs="" if task is None else what_runs(task)[:most_shown],
        program="" if record.last is None else record.last.program,
        malformed=malformed,
        body_bytes=len(record.body) if body_bytes is None else body_bytes,
        host=host_of(record.holder or "")[0] if is_leased else "" if last is None else last.host,
        holder=record.holder,
        leased_at=record.leased_at,
        lease_left=record.lease_left,
        beat=None if record.beat is None else replace(record.beat, output=""),
        exit=_exit(record, last),
        outcome="" if last is None else last.outcome,
        reason=record.reason or "",
        error=error_of(record.description or "") if asks_error and record.state is TaskState.DEAD else "",
        batch=record.batch,
        cancel_requested=record.cancel_requested,
    )


def detail_of(record: TaskRecord, attempts: Sequence[Attempt]) -> TaskDetail:
    """Return what the page of a task shows.

    Args:
        record: with its body.
        attempts: of it that were recorded.
    """
    task, _ = _task_in(record)
    row = row_of(record, most_shown=MOST_SHOWN)
    found = TaskDetail(
        row=row,
        attempts=attempts,
        output="" if record.beat is None else record.beat.output,
        checkpoint=record.checkpoint,
        description=record.description or "",
    )
    if task is None:
        return found
    return replace(
        found,
        variables=sorted(task.env),
        cwd=task.cwd,
        timeout=task.timeout,
        priority=task.priority,
        budgets=task.budgets,
        counters=task.counters,
        on_exit=task.on_exit or (),
        not_before=task.not_before,
        params=task.params,
        signed_by=() if task.work is None else [each.key_id for each in task.work.signatures or ()],
    )


def _task_in(record: TaskRecord) -> tuple[Task | None, str]:
    if not record.body:
        return None, ""
    try:
        return Task.decode(record.body), ""
    except MalformedTask as error:
        return None, str(error)


def _exit(record: TaskRecord, last: Attempt | None) -> str:
    if record.state is TaskState.DEAD:
        return exit_of(record.description or "")  # as groups and `dead list --where` have it
    if last is None:
        return ""
    if last.signal is not None:
        return f"signal {last.signal}"
    return "" if last.exit_code is None else str(last.exit_code)
