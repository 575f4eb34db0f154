"""Records of a journal as JSON fields, for those who read one over a network; what is not known is left out."""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from jobq.errors import MalformedTask
from jobq.journal.records import Attempt, Beat, TaskRecord, TaskState
from jobq.task import Task

_MOST_BODY_BYTES: Final = 16 * 1024  # of a task in a record: an answer holds hundreds of them
_MOST_COMMAND: Final = 2000
_PLAIN = ("id", "attempt", "at", "holder", "leased_at", "lease_left", "checkpoint", "reason", "description", "batch")


def record_fields(record: TaskRecord, *, is_whole: bool = True) -> dict[str, Any]:
    """Return a record as JSON fields; `record_of` reads them.

    Args:
        record: as it is.
        is_whole: whether a task of a size to be shown is given as it is stored, with its variables; else without.
    """
    found = {name: value for name in _PLAIN if (value := getattr(record, name)) is not None}
    found |= {"state": str(record.state), "cancel_requested": record.cancel_requested}
    found |= body_fields(_shown_body(record.body, is_whole=is_whole))
    if record.beat is not None:
        found["beat"] = json.loads(record.beat.encode())
    if record.last is not None:
        found["last"] = attempt_fields(record.last)
    return found


def shown(task: Task, most_bytes: int) -> bytes:
    """Return what is shown of a task: what runs, without variables; of a large one less, or nothing.

    Args:
        task: as it is.
        most_bytes: of what is shown.
    """
    brief = task.copied({"env": {}, "trace_context": {}, "not_before": None, "work": None})
    body = brief.encode()
    if len(body) <= most_bytes:
        return body
    if task.command is not None:
        return brief.copied({"command": task.command[:_MOST_COMMAND]}).encode()
    return b""


def _shown_body(body: bytes, *, is_whole: bool) -> bytes:
    if is_whole and len(body) <= _MOST_BODY_BYTES:
        return body
    try:
        return shown(Task.decode(body), _MOST_BODY_BYTES)
    except MalformedTask:
        return b""


def record_of(fields: Mapping[str, Any]) -> TaskRecord:
    """Return the record of these fields; what a newer jobq has added is left out."""
    beat, last = fields.get("beat"), fields.get("last")
    return TaskRecord(
        state=TaskState(fields["state"]),
        body=body_of(fields),
        beat=None if beat is None else Beat.decode(json.dumps(beat)),
        cancel_requested=bool(fields.get("cancel_requested")),
        last=None if last is None else attempt_of(last),
        **{name: fields.get(name) for name in _PLAIN},  # type: ignore[arg-type] # as JSON has them
    )


def attempt_fields(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as JSON fields; `attempt_of` reads them."""
    fields: dict[str, Any] = json.loads(attempt.encode())
    return fields


def attempt_of(fields: Mapping[str, Any]) -> Attempt:
    """Return the attempt of these fields."""
    return Attempt.decode(json.dumps(fields), int(fields.get("attempt", 0)))


def body_fields(body: bytes) -> dict[str, str]:
    """Return bytes as a field, without a loss."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def body_of(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes that `body_fields` was given."""
    if "body_base64" in fields:
        return base64.b64decode(fields["body_base64"])
    return str(fields["body"]).encode()
