"""The rows of a journal in an Azure Table: their keys, and what they hold.

One table serves many queues, each in a partition of its own, so that what belongs together is written together:

    l!TASK!LIFE               where a life of a task is; `done` for an hour after its end, so that a late word of its
                              push is refused
    a!TASK!LIFE!FENCING       what one attempt came to; written by who held that delivery, so it is never overwritten
    o!TASK!LIFE!FENCING       the end of what it printed
    i!TIME!TASK!LIFE!FENCING  that it ended then: for counting, and for forgetting in time; with what lists show of it,
                              so that they ask for no row more

A partition beside it, QUEUE!wish, holds w!TASK!LIFE for each life that somebody wants to end, and w!TASK where the
journal knows of none. LIFE is when the `Task` was made, counted backwards, so that the newest of an id comes first: it
tells tasks of one id apart, and stays through requeues, dead letters and redrives. FENCING is the fencing
number (S3) with zeros before it, so that the order of the keys is the order of the attempts.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Self

from jobq.fencing import FencingNumber
from jobq.journal.error_grouping import brief_of
from jobq.journal.records import Attempt, Beat, TaskRecord, TaskState
from jobq.journal.wire import shown
from jobq.task import Task
from jobq_azure.table_journal.client import Row

DONE: Final = "done"
PUT_BACK: Final = "put back"  # what became of an attempt whose dead letter was
MICROSECONDS: Final = 1_000_000
_SAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_ESCAPED: Final = re.compile(rb"=([0-9A-F]{2})")
_LONGEST: Final = 320  # of an id in a key, which has 512 characters at most; those of tasks have 300
CHUNK_BYTES: Final = 60 * 1024  # of one property, which the service limits to 64 KiB
_MOST_CHUNKS: Final = 10  # of one text; a row is 1 MiB at most
_MOST_BODY_BYTES: Final = 8 * 1024
_NUMBER: Final = 10**10 - 1
_END_OF_TIME: Final = 10**18  # in microseconds; no task is made so late
_LIFE_DIGITS: Final = 19
FINAL: Final = {
    "done": TaskState.SUCCEEDED,
    "dead": TaskState.DEAD,
    "canceled": TaskState.CANCELED,
}


class IdOfLife(str):
    """A task's id that also knows which life of it is meant: that of a push, or of a record.

    Attributes:
        birth: see `birth`.
    """

    __slots__ = ("birth",)
    birth: int

    @classmethod
    def of(cls, task_id: str, birth: int) -> Self:
        """Return the id of a life."""
        made = cls(task_id)
        made.birth = birth
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """A copy in another process is the id alone."""
        return str, (str(self),)


def safe(text: str) -> str:
    r"""Return an id as a part of a key: / \ # ? and control characters are not allowed in one, and % is trouble."""
    part = _SAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode(errors="replace")), text)
    if len(part) <= _LONGEST:
        return part
    return (
        f"{part[: _LONGEST - 33]}~{hashlib.blake2b(part.encode(), digest_size=16).hexdigest()}"  # of no task's making
    )


def unsafe(key: str) -> str:
    """Return the id in a part of a key."""
    raw = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), key.encode())
    return raw.decode(errors="replace")


def order(fencing: FencingNumber) -> str:
    """Return a fencing number as a part of a key."""
    return ".".join(f"{min(number, _NUMBER):010d}" for number in fencing)


def fencing_in(text: object) -> FencingNumber:
    """Return the fencing number in a part of a key; raises ValueError."""
    epoch, generation, delivery = map(int, str(text).split("."))
    return FencingNumber(epoch, generation, delivery)


def birth(created: float | None) -> int:
    """Return when a task was made, in microseconds since 1970; 0 for one that does not say."""
    return int(f"{created or 0.0:.6f}".replace(".", ""))


def life_key(part: str, birth: int, kind: str = "l") -> str:
    """Return the key of where a life is, or of another kind of row of it; see `lives`."""
    return f"{kind}!{part}!{_END_OF_TIME - birth:0{_LIFE_DIGITS}d}"


def live(task_id: str, birth: int) -> str:
    """Return the key of where a life is."""
    return life_key(safe(task_id), birth)


def lives(part: str, kind: str = "l") -> tuple[str, str]:
    """Return the first key of where the lives of an id are, or of other rows of it, and the first behind all of those.

    Args:
        part: the id, as it stands in a key.
        kind: of row.
    """
    return f"{kind}!{part}", f'{kind}!{part}"'  # `!` and `"` come before all that an id has


def id_part(row: Row) -> str:
    """Return the id in the key of a row, as it stands there; not of those that begin with a time."""
    return str(row["RowKey"].split("!")[1])


def attempt_key(task_id: str, birth: int, fencing: FencingNumber) -> str:
    """Return the key of what an attempt came to."""
    return f"{life_key(safe(task_id), birth, 'a')}!{order(fencing)}"


def beside(kind: str, row: Row) -> str:
    """Return the key of another kind of row of what this one is of."""
    return f"{kind}{row['RowKey'][1:]}"


def ended_key(ended: float, attempt: str) -> str:
    """Return the key that says when an attempt ended, by the attempt's own."""
    return f"{ended_from(ended)}{attempt[1:]}"


def ended_from(moment: float) -> str:
    """Return the first key of what ended at a wall time, or later."""
    return f"i!{max(0, int(moment * 1000)):015d}"


def cancel_request_key(task_id: str, birth: int | None) -> str:
    """Return the key of a cancel request, in the partition of those; None = of whatever had the id then."""
    return f"w!{safe(task_id)}" if birth is None else life_key(safe(task_id), birth, "w")


def cancel_requests_of(queue: str) -> str:
    """Return the partition of a queue's cancel requests."""
    return f"{queue}!wish"


def below(prefix: str) -> tuple[str, str]:
    """Return the first key that begins so, and the first behind all of those."""
    return f"{prefix}!", f'{prefix}"'


def put(values: dict[str, Any], name: str, data: bytes) -> None:
    """Add bytes under a name, in as many properties as it takes; what is beyond a megabyte is cut."""
    for number, start in enumerate(range(0, len(data), CHUNK_BYTES)):
        if number == _MOST_CHUNKS:
            return
        put_chunk(values, name, number, data[start : start + CHUNK_BYTES])


def put_chunk(values: dict[str, Any], name: str, number: int, data: bytes) -> None:
    """Add one property of `put`."""
    values[f"{name}{number}"] = base64.b64encode(data).decode()
    values[f"{name}{number}@odata.type"] = "Edm.Binary"


def taken(row: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes that were added under a name."""
    return b"".join(base64.b64decode(row[key]) for n in range(_MOST_CHUNKS) if (key := f"{name}{n}") in row)


def birth_in(row: Row) -> int:
    """Return the birth of the life that a row is of; raises LookupError or ValueError."""
    return _END_OF_TIME - int(row["RowKey"].split("!")[2])


def shown_body(task: Task | None) -> bytes:
    """Return what is kept of a task while it has not ended: what runs, and no variables, which may be secrets (A5)."""
    return b"" if task is None else shown(task, _MOST_BODY_BYTES)  # a row of more would cost more than it is worth


def batch_of(task: Task | None) -> dict[str, str]:
    """Return what a row says of the batch of a task; nothing of one that is of none."""
    return {"Batch": task.batch} if task is not None and task.batch is not None else {}


def batch_in(row: Row) -> str | None:
    """Return the batch that a row names."""
    return str(row["Batch"]) if row.get("Batch") else None


def age(row: Mapping[str, Any], now: float) -> float:
    """Return how many seconds ago a row was written, all by the service's clock.

    Args:
        row: as it was read.
        now: by the service's clock.
    """
    written = str(row.get("Timestamp", ""))
    # Seven digits of a second, of which Python reads six.
    text = re.sub(r"(\.\d{6})\d*", r"\1", written).replace("Z", "+00:00")
    try:
        return max(0.0, now - datetime.fromisoformat(text).timestamp())
    except ValueError:
        return 0.0


def id_of(row: Row) -> IdOfLife:
    """Return whose row it is, one of where a life is or of an attempt."""
    return IdOfLife.of(unsafe(id_part(row)), birth_in(row))


def lease_left(row: Row, now: float) -> float:
    """Return the seconds until the lease of a running task's row runs out."""
    return float(row.get("LeaseLeft", 0.0)) - age(row, now)


def live_record(row: Row, now: float, *, cancel_requested: bool) -> TaskRecord:
    """Return where a task is that has not ended, as its row says.

    Args:
        row: of the key `live`.
        now: by the service's clock.
        cancel_requested: whether somebody wants it to end.
    """
    state, due = str(row.get("State", "ready")), float(row.get("Due", 0.0))
    is_leased = state == "running"
    left = lease_left(row, now) if is_leased else None
    if left is not None:
        found = TaskState.RUNNING if left > 0 else TaskState.EXPIRED
    else:
        found = TaskState.SCHEDULED if due > now else TaskState.READY
    beat, checkpoint = taken(row, "Beat"), taken(row, "Checkpoint")
    return TaskRecord(
        id=id_of(row),
        state=found,
        attempt=fencing_in(row["Fencing"]).delivery,
        body=taken(row, "Body"),
        at=due if found is TaskState.SCHEDULED else float(row.get("At", 0.0)),
        holder=str(row.get("Holder", "")) if is_leased else None,
        leased_at=float(row["At"]) if is_leased else None,
        lease_left=left,
        beat=Beat.decode(beat.decode()) if beat and is_leased else None,
        checkpoint=checkpoint.decode() if "Checkpoint0" in row else None,
        cancel_requested=cancel_requested,
        batch=batch_in(row),
    )


def ended_record(row: Row) -> TaskRecord:
    """Return where a task is whose last attempt is this, a row of the key `attempt_key`."""
    attempt, then = decoded(row), str(row.get("Then", ""))
    description = taken(row, "Description").decode(errors="replace")
    return TaskRecord(
        id=id_of(row),
        state=FINAL.get(then, TaskState.READY),
        attempt=attempt.attempt,
        at=attempt.ended,
        reason=str(row["Reason"]) if "Reason" in row else None,
        description=description or None,
        last=attempt,
        batch=batch_in(row),
    )


def listed(attempt: Attempt, reason: str | None, description: str) -> dict[str, Any]:
    """Return what the row that says when an attempt ended holds for lists; see `listed_record`.

    Args:
        attempt: what it came to.
        reason: of a dead letter; None = it is none.
        description: likewise.
    """
    values: dict[str, Any] = {}
    brief = replace(attempt, value=None, usage=None, detail="")
    put(values, "Record", brief.encode().encode())
    if reason is not None:
        values["Reason"] = reason[:100]
        put(values, "Description", brief_of(description).encode(errors="replace"))
    return values


def listed_record(row: Row) -> TaskRecord:
    """Return a task by the row that says when it ended."""
    _, _, whose = row["RowKey"].split("!", 2)
    return ended_record({**row, "RowKey": f"a!{whose}"})


def done_record(row: Row) -> TaskRecord:
    """Return where a task is that has ended, and of whose last attempt nothing else is known."""
    state, number = FINAL[str(row["Then"])], fencing_in(row["Fencing"]).delivery
    return TaskRecord(id=id_of(row), state=state, attempt=number, at=float(row["At"]), batch=batch_in(row))


def decoded(row: Row) -> Attempt:
    """Return the attempt in a row of the key `attempt_key`."""
    return Attempt.decode(taken(row, "Record").decode(), fencing_of(row).delivery)


def fencing_of(row: Row) -> FencingNumber:
    """Return the fencing number at the end of a row's key."""
    return fencing_in(row["RowKey"].rpartition("!")[2])


def is_final(then: str) -> bool:
    """Return whether an attempt that ended so was the task's last."""
    return then in FINAL
