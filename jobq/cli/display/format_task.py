"""How a task from a queue is shown to people and to programs; its body may be anything, so nothing here fails on it."""

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from jobq.errors import MalformedTask
from jobq.formats.visible_text import visible, visible_bytes

if TYPE_CHECKING:
    from jobq.task import Task

_SHOWN_BYTES: Final = 4096
HIDDEN: Final = "(hidden)"


def _task_in(body: bytes) -> "Task":
    from jobq.task import Task  # noqa: PLC0415 - --help must not pay for it

    return Task.decode(body)


def what_runs(body: bytes) -> str:
    """Return in one line what a message runs, or that it is no task."""
    try:
        task = _task_in(body)
    except MalformedTask as error:
        return visible(f"(not a task: {error})")
    from jobq.journal.what_runs import what_runs as text_of  # noqa: PLC0415 - --help must not pay for it

    return visible(text_of(task))


def as_shell(command: str, variables: Mapping[str, str]) -> str:
    """Return a command and what it finds in its environment as a line that does the same in a shell."""
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return f"export {given}; {command}" if given else command


def as_json(body: bytes, *, env: bool) -> dict[str, Any]:
    """Return what a message holds, for a JSON object: `task`, or `error` and the escaped `body`.

    Args:
        body: the message.
        env: whether to show the values of its variables, which may be secrets (A5), and what may hold some.
    """
    try:
        task = _task_in(body)
    except MalformedTask as error:
        shown = visible_bytes(body[:_SHOWN_BYTES]) if env else f"(hidden: {len(body)} bytes)"
        return {"task": None, "error": str(error), "body": shown}
    fields: dict[str, Any] = task.copied({"work": None}).as_dict()
    if not env:
        fields["env"] = dict.fromkeys(task.env, HIDDEN)
    if task.work is not None and task.work.signatures:
        fields["claimed_keys"] = [signature.key_id for signature in task.work.signatures]
    return {"task": fields}


def details(body: bytes, *, env: bool) -> list[tuple[str, str]]:
    """Return what a message holds as labels and printable texts; see `as_json`."""
    held = as_json(body, env=env)
    if held["task"] is None:
        return [("error", visible(held["error"])), ("body", held["body"])]
    rows = [("runs", what_runs(body))]
    for name, value in held["task"].items():
        if name in {"id", "command", "argv", "call", "kwargs"} or value in ({}, 0):
            continue
        if name in {"created", "not_before"}:
            rows.append((name, local_time(value)))
        elif isinstance(value, dict):
            rows += [(name, visible(f"{key}={item}")) for key, item in value.items()]
        else:
            rows.append((name, visible(str(value))))
    return rows


def local_time(seconds: float) -> str:
    """Return a wall time for people: in their own time, which logs are in too, with its distance from UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):  # as below
        return str(seconds)


def moment(seconds: float) -> str:
    """Return a wall time for programs: as RFC 3339, in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # a time that no calendar has
        return str(seconds)
