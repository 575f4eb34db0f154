"""The rows of a journal in an Azure Table: their keys, and what they hold.

One table serves many queues, each in a partition of its own, so that what belongs together is written together:

    l!TASK            where a task is now; `done` for an hour after its end, so that a late word of its push is refused
    a!TASK!FENCING    what one attempt came to; written by nobody but who held that delivery, and so never overwritten
    o!TASK!FENCING    the end of what it printed
    i!TIME!TASK!FENCING  that it ended then: for counting, and for forgetting in time
    c!TASK!LIFE       a checkpoint, of a queue that has no place for one (Service Bus)

A partition beside it, QUEUE!wish, holds a row for each task that somebody wants to end. FENCING is the fencing number
(S3) with zeros before it, so that the order of the keys is the order of the attempts.
"""

import base64
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from jobq.fencing import FencingNumber
from jobq.journal.records import Attempt, Beat, TaskRecord, TaskState
from jobq.journal.wire import shown
from jobq.task import Task
from jobq_azure.table_journal.client import Row

DONE: Final = "done"
GRAIN_SECONDS: Final = 1e-6  # of when a task was created, as a row has it
_SAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_ESCAPED: Final = re.compile(rb"=([0-9A-F]{2})")
_CHUNK_BYTES: Final = 60 * 1024  # of one property, which the service limits to 64 KiB
_MOST_CHUNKS: Final = 10  # of one text; a row is 1 MiB at most
_MOST_BODY_BYTES: Final = 8 * 1024
_NUMBER: Final = 10**10 - 1
FINAL: Final = {
    "done": TaskState.SUCCEEDED,
    "dead": TaskState.DEAD,
    "canceled": TaskState.CANCELED,
    "moved": TaskState.MOVED,
}


def safe(text: str) -> str:
    r"""Return an id as a part of a key: / \ # ? and control characters are not allowed in one, and % is trouble."""
    return _SAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode(errors="replace")), text)


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


def live(task_id: str) -> str:
    """Return the key of where a task is."""
    return f"l!{safe(task_id)}"


def attempt_key(task_id: str, fencing: FencingNumber) -> str:
    """Return the key of what an attempt came to."""
    return f"a!{safe(task_id)}!{order(fencing)}"


def output_key(task_id: str, fencing: FencingNumber) -> str:
    """Return the key of what an attempt printed."""
    return f"o!{safe(task_id)}!{order(fencing)}"


def ended_key(ended: float, task_id: str, fencing: FencingNumber) -> str:
    """Return the key that says when an attempt ended."""
    return f"{ended_from(ended)}!{safe(task_id)}!{order(fencing)}"


def ended_from(moment: float) -> str:
    """Return the first key of what ended at a wall time, or later."""
    return f"i!{max(0, int(moment * 1000)):015d}"


def checkpoint_key(task_id: str, life: str) -> str:
    """Return the key of a task's checkpoint."""
    return f"c!{safe(task_id)}!{safe(life)}"


def cancel_request_key(task_id: str) -> str:
    """Return the key of a task's cancel request, in the partition of cancel requests."""
    return f"w!{safe(task_id)}"


def cancel_requests_of(queue: str) -> str:
    """Return the partition of a queue's cancel requests."""
    return f"{queue}!wish"


def below(prefix: str) -> tuple[str, str]:
    """Return the first key that begins so, and the first behind all of those; `!` comes before all that an id has."""
    return f"{prefix}!", f'{prefix}"'


def put(values: dict[str, Any], name: str, data: bytes) -> None:
    """Add bytes under a name, in as many properties as it takes; what is beyond a megabyte is cut."""
    for number, start in enumerate(range(0, len(data), _CHUNK_BYTES)):
        if number == _MOST_CHUNKS:
            return
        values[f"{name}{number}"] = base64.b64encode(data[start : start + _CHUNK_BYTES]).decode()
        values[f"{name}{number}@odata.type"] = "Edm.Binary"


def taken(row: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes that were added under a name."""
    return b"".join(base64.b64decode(row[key]) for n in range(_MOST_CHUNKS) if (key := f"{name}{n}") in row)


def born_in(row: Mapping[str, Any]) -> float | None:
    """Return when the task of a row was created; None where that is not known."""
    return _number(row.get("Born"))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):  # who may write there may write anything
        return None


def born_by(row: Mapping[str, Any]) -> float | None:
    """Return the latest at which the task of a row can have been created; None where nothing says it."""
    if (born := born_in(row)) is not None or row.get("State") != DONE:
        return born
    return _number(row.get("At"))


def shown_body(task: Task | None) -> bytes:
    """Return what is kept of a task while it has not ended: what runs, and no variables, which may be secrets (A5)."""
    return b"" if task is None else shown(task, _MOST_BODY_BYTES)  # a row of more would cost more than it is worth


def born(task: Task | None) -> str:
    """Return what distinguishes a task from another that had its id before."""
    return "" if task is None else moment(task.created)


def moment(created: float | None) -> str:
    """Return when a task was created as it stands in a row; empty for one that does not say."""
    return f"{created:.6f}" if created else ""


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


def id_of(row: Row) -> str:
    """Return whose row it is."""
    return unsafe(row["RowKey"].split("!")[2 if row["RowKey"].startswith("i!") else 1])


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
        found = TaskState.SCHEDULED if due > time.time() else TaskState.READY
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
    )


def ended_record(task_id: str, row: Row) -> TaskRecord:
    """Return where a task is whose last attempt is this.

    Args:
        task_id: whose.
        row: of the key `attempt_key`.
    """
    attempt, then = decoded(row), str(row.get("Then", ""))
    description = taken(row, "Description").decode(errors="replace")
    return TaskRecord(
        id=task_id,
        state=FINAL.get(then, TaskState.READY),
        attempt=attempt.attempt,
        at=attempt.ended,
        reason=str(row["Reason"]) if "Reason" in row else None,
        description=description or None,
        last=attempt,
    )


def done_record(task_id: str, row: Row) -> TaskRecord:
    """Return where a task is that has ended, and of whose last attempt nothing else is known."""
    state, number = FINAL[str(row["Then"])], fencing_in(row["Fencing"]).delivery
    return TaskRecord(id=task_id, state=state, attempt=number, at=float(row["At"]))


def decoded(row: Row) -> Attempt:
    """Return the attempt in a row of the key `attempt_key`."""
    return Attempt.decode(taken(row, "Record").decode(), fencing_of(row).delivery)


def fencing_of(row: Row) -> FencingNumber:
    """Return the fencing number at the end of a row's key."""
    return fencing_in(row["RowKey"].rpartition("!")[2])


def is_final(then: str) -> bool:
    """Return whether an attempt that ended so was the task's last."""
    return then in FINAL
