"""Reading some tasks of a queue from a place on, each order by its index, as SQL; see `jobq.journal.task_search`.

What is walked over is bounded first, by an index alone; bodies and records are looked at of those alone.
"""

import sqlite3
from typing import Any, Final, NamedTuple

from jobq.journal.records import TaskState
from jobq.journal.task_rows import MOST_BODY_BYTES
from jobq.journal.task_search import FoundTask, Key, SearchStep, TaskOrder, Walked, float_of, key_of, no_place, whole_of
from jobq_sqlite.journal import COLUMNS, record_of
from jobq_sqlite.task_sql import Now

_LISTED: Final = COLUMNS.replace(
    " body,", f" CASE WHEN :asks_body AND length(body) <= {MOST_BODY_BYTES} THEN body ELSE x'' END,"
)
_LAST: Final = (
    "LEFT JOIN (SELECT seq AS of_task, attempt AS number, record FROM attempt) AS last ON of_task = task.seq"
    " AND number = (SELECT max(attempt) FROM attempt WHERE attempt.seq = task.seq)"
)
_OUTCOME_OF: Final = {TaskState.SUCCEEDED: "", TaskState.CANCELED: "canceled"}
_OUTCOMES: Final = tuple(_OUTCOME_OF.values())


class KeyColumn(NamedTuple):
    """A part of an order.

    Attributes:
        name: of the column, or what it is made of.
        is_down: whether higher values come first.
    """

    name: str
    is_down: bool = False


class IndexOrder(NamedTuple):
    """One way through some of the tasks.

    A place is the values of its columns for one row. Behind it are, one after the other: those that have all but the
    last in common with it, those that have all but the last two, and so on. One comparison of all columns would be one
    of the first to SQLite's indexes: of a million tasks of one push it would walk over those before the place.

    Attributes:
        where: which tasks.
        columns: in which order.
        to: how far the first column goes; not asked of those that have it in common with a place.
        at_first: from where it does, while there is no place to go on from.
    """

    where: str
    columns: tuple[KeyColumn, ...]
    to: str = "true"
    at_first: str = "true"

    def walk(self, known: int) -> str:
        """Return which tasks are behind a place of which the first columns are known; of none: all."""
        if not known:
            return f"{self.where} AND {self.to} AND {self.at_first}"
        *same, (name, is_down) = self.columns[:known]
        equal = [f"{column.name} = :key{number}" for number, column in enumerate(same)]
        bound = [] if same else [self.to]
        return " AND ".join([self.where, *bound, *equal, f"{name} {'<' if is_down else '>'} :key{known - 1}"])

    def by(self, known: int) -> str:
        """Return in which order they are to be read: what they have in common need not be sorted."""
        left = self.columns[max(0, known - 1) :]
        return ", ".join(f"{name} DESC" if is_down else name for name, is_down in left)


_SEQ: Final = KeyColumn("seq")
# Of what is leased alone some is sorted: its index is by the end of the leases.
_BY_START: Final = KeyColumn("coalesce(started_at, 0.0)"), _SEQ
_BY_TIME: Final = KeyColumn("available_at"), _SEQ
_BY_END: Final = KeyColumn("finished_at", is_down=True), KeyColumn("seq", is_down=True)
_LEASED: Final = "queue_id = :queue AND state = 'leased' AND expires_at"
_SCHEDULED: Final = "queue_id = :queue AND state = 'scheduled'"
_ENDED: Final = "queue_id = :queue AND state = '{}'"
_SINCE: Final = "finished_at >= :oldest", "finished_at <= :newest"
ORDERS: Final = {
    TaskOrder.EXPIRED: IndexOrder(f"{_LEASED} <= :boottime", _BY_START),
    TaskOrder.RUNNING: IndexOrder(f"{_LEASED} > :boottime", _BY_START),
    TaskOrder.READY: IndexOrder(
        "queue_id = :queue AND state = 'ready'", (KeyColumn("priority", is_down=True), *_BY_TIME)
    ),
    TaskOrder.DUE: IndexOrder(_SCHEDULED, _BY_TIME, "available_at <= :wall"),
    TaskOrder.SCHEDULED: IndexOrder(_SCHEDULED, _BY_TIME, at_first="available_at > :wall"),
    TaskOrder.DEAD: IndexOrder(_ENDED.format("dead"), _BY_END, *_SINCE),
    TaskOrder.ENDED: IndexOrder(_ENDED.format("done"), _BY_END, *_SINCE),
}
# A batch's tasks in the order of arrival, one outcome after the other: its index has no other order.
OF_BATCH: Final = IndexOrder("batch_id = :batch AND state = :state AND outcome IS :outcome", (_SEQ,))
_STATE_OF: Final = {
    TaskOrder.EXPIRED: ("leased", "expires_at <= :boottime"),
    TaskOrder.RUNNING: ("leased", "expires_at > :boottime"),
    TaskOrder.READY: ("ready", "true"),
    TaskOrder.DUE: ("scheduled", "available_at <= :wall"),
    TaskOrder.SCHEDULED: ("scheduled", "available_at > :wall"),
    TaskOrder.DEAD: ("dead", "finished_at BETWEEN :oldest AND :newest"),
    TaskOrder.ENDED: ("done", "finished_at BETWEEN :oldest AND :newest"),
}


class _Walk(NamedTuple):
    """What one step walks over.

    Attributes:
        order: whose walk it is.
        known: how much of a place it begins behind.
        outcome: of a batch's tasks, where it is of one.
    """

    order: IndexOrder
    known: int
    outcome: Key = ()

    @property
    def rows(self) -> str:
        return f"{self.order.walk(self.known)} ORDER BY {self.order.by(self.known)}"

    def key(self, row: Any) -> Key:
        return (*self.outcome, *key_of(row[: len(self.order.columns)]))


def walked(database: sqlite3.Connection, queue: int, batch: int | None, step: SearchStep, now: Now) -> Walked:
    """Return what a step asks for.

    Args:
        database: in a transaction that only reads.
        queue: the queue's number.
        batch: the batch's number; None = of any, and of none.
        step: what to read.
        now: the time.

    Raises:
        ConfigurationError: the step's place is none.
    """
    values: dict[str, Any] = {"queue": queue, "batch": batch, "boottime": now.boottime, "wall": now.wall}
    values |= {"look": step.look, "want": step.want, "oldest": step.oldest, "newest": step.newest}
    values["asks_body"] = step.asks_body
    walk = _walk(step, values) if batch is None else _walk_of_batch(step, values)
    conditions = _conditions(step, values, is_of_batch=batch is not None)
    statement = listed(walk.order, walk.known, conditions, reads_last=step.asks_last or bool(step.needles.records))
    tasks = [_found(walk, row, now) for row in database.execute(statement, values)]
    if len(tasks) == step.want:
        last = tasks[-1]
        looked_at = step.look if step.want == step.look else _place_in(database, walk, values, last.key)
        return Walked(tasks=tasks, looked_at=looked_at, key=last.key, at=last.record.at)
    looked = f"SELECT seq FROM task WHERE {walk.rows} LIMIT :look"  # noqa: S608 - constants of ours, every value is bound; so below
    (looked_at,) = database.execute(f"SELECT count(*) FROM ({looked})", values).fetchone()  # noqa: S608
    if looked_at < step.look:
        return Walked(tasks=tasks, looked_at=looked_at, key=_next(step, walk))
    edge = database.execute(edge_of(walk.order, walk.known), {**values, "others": step.look - 1}).fetchone()
    return Walked(tasks=tasks, looked_at=looked_at, key=walk.key(edge), at=edge[-1])


def listed(order: IndexOrder, known: int, conditions: str, *, reads_last: bool = True) -> str:
    """Return the statement that reads tasks.

    Args:
        order: in which they are looked at.
        known: how much is known of the place that they are behind.
        conditions: which of those that are looked at are returned.
        reads_last: whether their last attempts are read, too.
    """
    return (
        f"SELECT {_key_columns(order)}, {_LISTED}, length(body), {'record, number' if reads_last else 'NULL, NULL'}"  # noqa: S608
        f" FROM (SELECT seq FROM task WHERE {order.walk(known)} ORDER BY {order.by(known)} LIMIT :look)"
        f" CROSS JOIN task USING (seq) {_LAST if reads_last else ''} WHERE {conditions} LIMIT :want"
    )


def edge_of(order: IndexOrder, known: int) -> str:
    """Return the statement that reads where the last one stands that was looked at, and its time."""
    at = "coalesce(finished_at, started_at, available_at)"
    return (
        f"SELECT {_key_columns(order)}, {at} FROM task WHERE {order.walk(known)} ORDER BY {order.by(known)}"  # noqa: S608
        " LIMIT 1 OFFSET :others"  # bounded: of those that were looked at
    )


def _key_columns(order: IndexOrder) -> str:
    return ", ".join(column.name for column in order.columns)


def _walk(step: SearchStep, values: dict[str, Any]) -> _Walk:
    order = ORDERS[step.order]
    if len(step.key) > len(order.columns):
        raise no_place()
    for number, (part, column) in enumerate(zip(step.key, order.columns, strict=False)):
        is_whole = column.name in ("seq", "priority")
        values[f"key{number}"] = whole_of(part) if is_whole else float_of(part)
    return _Walk(order, len(step.key))


def _walk_of_batch(step: SearchStep, values: dict[str, Any]) -> _Walk:
    if len(step.key) not in (0, 2) or (step.key and step.key[0] not in _OUTCOMES):
        raise no_place()
    outcome, seq = step.key or ("", "-1")
    values |= {"state": _STATE_OF[step.order][0], "outcome": outcome or None, "key0": whole_of(seq)}
    return _Walk(OF_BATCH, 1, (outcome,))


def _conditions(step: SearchStep, values: dict[str, Any], *, is_of_batch: bool) -> str:
    needles = step.needles
    found = [_STATE_OF[step.order][1] if is_of_batch else "true"]
    if needles.id:
        values["id"] = needles.id
        found.append("instr(id, :id)")
    if needles.body:
        values["body"] = needles.body.encode()
        found.append("instr(body, :body)")
    if needles.holder:
        values["holder"] = needles.holder
        found.append("instr(holder, :holder)")
    for number, needle in enumerate(needles.descriptions):
        values[f"description{number}"] = needle
        found.append(f"instr(description, :description{number})")
    for number, needle in enumerate(needles.records):
        values[f"record{number}"] = needle
        found.append(f"(record IS NULL OR instr(record, :record{number}))")
    if outcomes := [_OUTCOME_OF[state] for state in step.states if state in _OUTCOME_OF]:
        values |= {f"outcome{number}": outcome for number, outcome in enumerate(outcomes)}
        found.append(f"coalesce(outcome, '') IN ({', '.join(f':outcome{n}' for n in range(len(outcomes)))})")
    return " AND ".join(found)


def _found(walk: _Walk, row: Any, now: Now) -> FoundTask:
    *columns, size, record, attempt = row[len(walk.order.columns) :]
    last = None if record is None else (record, attempt)
    return FoundTask(walk.key(row), record_of(tuple(columns), now, last), size)


def _next(step: SearchStep, walk: _Walk) -> Key | None:
    """Return the place to go on from when a walk has come to its end; None = there is nothing else in this order."""
    if walk.outcome and step.order is TaskOrder.ENDED and walk.outcome[0] != _OUTCOMES[-1]:
        return _OUTCOMES[_OUTCOMES.index(walk.outcome[0]) + 1], "-1"
    return step.key[:-1] if not walk.outcome and walk.known > 1 else None


def _place_in(database: sqlite3.Connection, walk: _Walk, values: dict[str, Any], key: Key) -> int:
    """Return how many were looked at up to one of them; the number of its row ends its place."""
    rows = database.execute(f"SELECT seq FROM task WHERE {walk.rows} LIMIT :look", values)  # noqa: S608
    return [str(row[0]) for row in rows].index(key[-1]) + 1
