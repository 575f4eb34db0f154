"""Messages of ai4s-jobq, wire versions 0 and 1, so that a jobq worker can drain a queue that is already full.

There, `kwargs` is JSON inside a string, and `num_retries` is what is left. A shell task has the keyword arguments
`cmd`, `env`, `cwd` and `bg_dirsync_to`; anything else was meant for a callback.
"""

from typing import Any, Final

from jobq.errors import MalformedTask
from jobq.formats import strict_json

_FIELDS: Final = {"id", "kwargs", "num_retries", "reply_requested"}
_SHELL_ARGUMENTS: Final = {"cmd", "env", "cwd", "bg_dirsync_to"}
_ADDED: Final = {"_job_id", "_worker_id"}  # its worker writes them into the arguments of what it puts back


def read(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return what `Task.new` takes, of a decoded message without its `version` field; raises MalformedTask."""
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise MalformedTask(f"unknown field in version {version}", ascii(unknown[0])[:42])
    for name, kind in (("id", str), ("kwargs", str), ("num_retries", int)):
        if type(fields.get(name)) is not kind:
            raise MalformedTask(f"must be {'a string' if kind is str else 'an integer'}", name)
    if fields.get("reply_requested", False) not in (False, None):
        raise MalformedTask("asks for a reply, which no ai4s-jobq backend ever gave", "reply_requested")
    try:
        kwargs = strict_json.loads(fields["kwargs"].encode())
    except MalformedTask as error:
        raise MalformedTask(error.what, f"kwargs: {error.where}") from None
    if not isinstance(kwargs, dict):
        raise MalformedTask("must hold a JSON object", "kwargs")
    # ai4s counts down; a negative number there means that the next failure is the last.
    budgets = {"retries": max(0, fields["num_retries"])}
    return {"id": fields["id"], "created": None, "budgets": budgets, **_work(kwargs)}


def _work(kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs = {name: value for name, value in kwargs.items() if name not in _ADDED}
    if "cmd" not in kwargs or kwargs.keys() - _SHELL_ARGUMENTS:
        return {"kwargs": kwargs}
    if kwargs.get("bg_dirsync_to"):
        raise MalformedTask("asks for a background copy of its folder, which jobq does not make", "bg_dirsync_to")
    env = kwargs.get("env") or {}
    if not isinstance(env, dict):
        raise MalformedTask("must be an object", "env")
    text = {name: value if isinstance(value, str) else str(value) for name, value in env.items()}
    return {"command": kwargs["cmd"], "env": text, "cwd": kwargs.get("cwd")}
