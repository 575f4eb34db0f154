"""Reading some tasks of a queue from a place on, each order by its index, as SQL; see `jobq.journal.task_search`.

What is walked over is bounded first, by an index alone; bodies and records are looked at of those alone. All bounds are
parameters: a clock in a condition would be asked for each row.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from jobq.journal.records import Attempt, TaskRecord, TaskState
from jobq.journal.task_rows import MOST_BODY_BYTES
from jobq.journal.task_search import FoundTask, Key, SearchStep, TaskOrder, Walked, no_place, whole_of
from jobq.journal.views import is_storable
from jobq_postgres.bounded_read import BoundedRead, text_keys
from jobq_postgres.journal import DEAD_COLUMNS, ENDED_COLUMNS, TASK_COLUMNS, dead_of, ended_of, waiting_of

_MOST_ID: Final = 400  # characters
_LATEST: Final = 253_402_300_799.0  # seconds since the epoch: the end of the year 9999
_OUTCOME_OF: Final = {TaskState.SUCCEEDED: "", TaskState.CANCELED: "canceled"}
_BODY: Final = f" CASE WHEN octet_length(body) <= {MOST_BODY_BYTES} THEN body ELSE '' END AS body,"


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise no_place()


def _id(text: str) -> str:
    if is_storable(text) and len(text) <= _MOST_ID:
        return text
    raise no_place()


class TableOrder(NamedTuple):
    """One way through some of the tasks.

    Attributes:
        table: where they are.
        where: which of them, of the :queue or :batch, by the time that is :now.
        keys: what a place is made of.
        types: how its parts are read.
        is_down: whether higher ones come first.
        at_first: which of them while there is no place to go on from.
    """

    table: str
    where: str
    keys: tuple[str, ...]
    types: tuple[Callable[[str], Any], ...]
    is_down: bool = False
    at_first: str = "true"

    def walk(self, *, is_first: bool) -> str:
        """Return the statement that walks over :look at most, from the beginning or behind the place :key0, :key1."""
        way = " DESC" if self.is_down else ""
        keys = ", ".join(self.keys)
        behind = self.at_first if is_first else f"({keys}) {'<' if self.is_down else '>'} (:key0, :key1)"
        return (
            f"SELECT * FROM jobq.{self.table} WHERE {self.where} AND {behind}"  # noqa: S608 - constants of ours, every value is bound; so below
            f" ORDER BY {', '.join(f'{key}{way}' for key in self.keys)} LIMIT :look"
        )


# Of what is leased alone some is sorted: its index is by the end of the leases.
_BY_START: Final = ("coalesce(started_at, to_timestamp(0))", "seq"), (_moment, whole_of)
_BY_DUE: Final = ("due", "seq"), (_moment, whole_of)
_DOWN: Final = (_moment, _id), True
_OURS: Final = "queue_id = :queue"
ORDERS: Final = {
    TaskOrder.EXPIRED: TableOrder("task", f"{_OURS} AND expires_at <= :now", *_BY_START),
    TaskOrder.RUNNING: TableOrder("task", f"{_OURS} AND expires_at > :now", *_BY_START),
    TaskOrder.READY: TableOrder(
        "task", f"{_OURS} AND position IS NOT NULL", ("rank", "position"), (whole_of, whole_of)
    ),
    TaskOrder.DUE: TableOrder("task", f"{_OURS} AND due <= :now", *_BY_DUE),
    TaskOrder.SCHEDULED: TableOrder("task", f"{_OURS} AND due IS NOT NULL", *_BY_DUE, at_first="due > :now"),
    TaskOrder.DEAD: TableOrder(
        "dead", f"{_OURS} AND died_at >= :oldest", ("died_at", "id"), *_DOWN, at_first="died_at <= :newest"
    ),
    TaskOrder.ENDED: TableOrder(
        "submission", f"{_OURS} AND ended_at >= :oldest", ("ended_at", "id"), *_DOWN, at_first="ended_at <= :newest"
    ),
}
# Of a batch what is leased or scheduled is looked for among all that is: a million of it may be ready.
OF_BATCH: Final = {
    TaskOrder.READY: TableOrder(
        "task", "batch_id = :batch AND position IS NOT NULL", ("batch_id", "seq"), (whole_of, whole_of)
    ),
    TaskOrder.DEAD: TableOrder("dead", "batch_id = :batch", ("batch_id", "id"), (whole_of, _id)),
    TaskOrder.ENDED: ORDERS[TaskOrder.ENDED]._replace(where="batch_id = :batch AND ended_at >= :oldest"),
}
_COLUMNS: Final = {
    "task": (TASK_COLUMNS.replace(" body,", _BODY), "octet_length(body)", waiting_of),
    "dead": (DEAD_COLUMNS.replace(" body,", _BODY), "octet_length(body)", dead_of),
    "submission": (ENDED_COLUMNS, "0", ended_of),
}
_LAST: Final = """
    LEFT JOIN LATERAL (
        SELECT record AS last_record, attempt AS last_number FROM jobq.attempt
        WHERE attempt.queue_id = :queue AND attempt.id = {}.id
        ORDER BY attempt.queue_id, attempt.id, attempt DESC LIMIT 1
    ) AS last ON true
"""
_NAME: Final = re.compile(r"(?<!:):([a-z_]+[0-9]?)\b")


@lru_cache(maxsize=256)
def _numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement as the server takes it, and the names of its values in their order."""
    names = tuple(dict.fromkeys(_NAME.findall(statement)))
    return _NAME.sub(lambda found: f"${names.index(found[1]) + 1}", statement), names


def bound(statement: str, values: Mapping[str, object]) -> tuple[str, list[object]]:
    """Return a statement with :names as the server takes it, and those of the values that it asks for."""
    text, names = _numbered(statement)
    return text, [values[name] for name in names]


async def walked(read: BoundedRead, queue: int, batch: int | None, step: SearchStep) -> Walked:
    """Return what a step asks for.

    Args:
        read: within whose time it is read.
        queue: the queue's number.
        batch: the batch's number; None = of any, and of none.
        step: what to read.

    Raises:
        ConfigurationError: the step's place is none.
        TimeIsOver: there was not enough.
    """
    order = _order(step, is_of_batch=batch is not None)
    values: dict[str, Any] = {"queue": queue, "batch": batch, "now": read.now, "look": step.look, "want": step.want}
    values |= {"oldest": _time(step.oldest), "newest": _time(step.newest)} | _place(order, step.key)
    walk = order.walk(is_first=not step.key)
    conditions = _conditions(order, step, values, is_of_batch=batch is not None)
    text, given = bound(listed(order, walk, conditions), values)
    rows = sorted(await read.fetch(text, *given), key=lambda row: int(row["number"]))
    tasks = [_found(order, row) for row in rows if row["is_meant"]]
    if rows and (len(rows) == step.want or rows[-1]["number"] == step.look):
        last = rows[-1]
        return Walked(tasks=tasks, looked_at=last["number"], key=tuple(text_keys(last[:2])), at=_at(last))
    text, given = bound(counted(walk), values)  # all there are: fewer than were to be looked at
    return Walked(tasks=tasks, looked_at=(await read.fetch_one(text, *given))[0])


def listed(order: TableOrder, walk: str, conditions: str) -> str:
    """Return the statement that reads tasks, and the last one that is looked at: there the next step goes on.

    Args:
        order: in which they are looked at.
        walk: its statement.
        conditions: which of those that are looked at are returned.
    """
    columns, size, _ = _COLUMNS[order.table]
    return (
        f"SELECT {', '.join(order.keys)}, {columns}, number, {size} AS body_bytes, last_record, last_number,"  # noqa: S608
        f" {conditions} AS is_meant"
        f" FROM (SELECT *, row_number() OVER () AS number FROM ({walk}) AS looked) AS {order.table}"
        f" {_LAST.format(order.table)} WHERE {conditions} OR number = :look LIMIT :want"
    )


def counted(walk: str) -> str:
    """Return the statement that counts what there is to look at."""
    return f"SELECT count(*) FROM ({walk}) AS looked"  # noqa: S608


def _order(step: SearchStep, *, is_of_batch: bool) -> TableOrder:
    return OF_BATCH.get(step.order, ORDERS[step.order]) if is_of_batch else ORDERS[step.order]


def _place(order: TableOrder, key: Key) -> dict[str, object]:
    if not key:
        return {}
    if len(key) != len(order.types):
        raise no_place()
    return {f"key{n}": read(part) for n, (read, part) in enumerate(zip(order.types, key, strict=True))}


def _at(row: Any) -> float | None:
    return next((key.timestamp() for key in row[:2] if isinstance(key, datetime)), None)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(0.0, seconds), _LATEST), UTC)


def _conditions(order: TableOrder, step: SearchStep, values: dict[str, Any], *, is_of_batch: bool) -> str:
    needles = step.needles
    found = [f"{order.table}.batch_id = :batch" if is_of_batch else "true"]
    if needles.id:
        values["part"] = needles.id
        found.append("strpos(id, :part) > 0")
    if needles.body:
        values["body"] = needles.body.encode()
        found.append(f"octet_length(body) <= {MOST_BODY_BYTES} AND position(:body in body) > 0")
    if needles.holder:
        values["holder"] = needles.holder
        found.append("strpos(holder, :holder) > 0")
    for number, needle in enumerate(needles.descriptions):
        values[f"description{number}"] = needle.encode()
        found.append(f"position(:description{number} in description) > 0")
    for number, needle in enumerate(needles.records):
        values[f"record{number}"] = needle
        found.append(f"coalesce(strpos(last_record, :record{number}) > 0, true)")
    if outcomes := [_OUTCOME_OF[state] for state in step.states if state in _OUTCOME_OF]:
        values["outcomes"] = outcomes
        found.append("coalesce(outcome, '') = ANY (:outcomes::text[])")
    return " AND ".join(found)


def _found(order: TableOrder, row: Any) -> FoundTask:
    _, _, record_of = _COLUMNS[order.table]
    last = None if row["last_record"] is None else Attempt.decode(row["last_record"], row["last_number"])
    record: TaskRecord = record_of(row, last)
    return FoundTask(tuple(text_keys(row[:2])), record, row["body_bytes"])
