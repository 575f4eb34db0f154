"""Which tasks a worker runs, where it is limited (rules.md 3, A1): lists of commands, functions and variables."""

import re
import shlex
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from jobq.errors import ConfigurationError
from jobq.settings import Settings
from jobq.task import Task

MOST_REFUSED: Final = 10  # different tasks in a row, none of which this worker may run: it is in the wrong place


def check(settings: Settings) -> None:
    """Raise ConfigurationError where a list holds a regular expression that is none."""
    for entry in settings.allow_commands:
        try:
            re.compile(entry if entry.startswith("^") else "")
        except re.error as error:
            raise ConfigurationError(f"JOBQ_ALLOW_COMMANDS: {entry} is no regular expression: {error}") from None


def refusal(task: Task, settings: Settings) -> str | None:
    """Return why a worker with these lists does not run a task; None = it does, as without any list.

    A list of commands allows no functions, and the reverse. Folders and variables change what a command does
    (`BASH_ENV`, `LD_PRELOAD`, a module beside the one that is meant), so a task brings none that are not listed.

    Args:
        task: as it was received.
        settings: the worker's, with its lists.
    """
    if not (settings.allow_commands or settings.allow_calls):
        return None
    if task.call is not None and task.call not in settings.allow_calls:
        return f"{task.call} is not among JOBQ_ALLOW_CALLS"
    is_command = task.command is not None or task.argv is not None
    if is_command and not _is_command_allowed(task, settings.allow_commands):
        return "its command is not among JOBQ_ALLOW_COMMANDS"
    if task.cwd is not None:
        return "it names a folder to run in, and this worker runs what its JOBQ_ALLOW_ lists name where it was started"
    for name in task.env:
        if not any(fnmatchcase(name, pattern) for pattern in settings.allow_variables):
            return f"it brings the variable {name}, which is not among JOBQ_ALLOW_VARIABLES"
    return None


def _is_command_allowed(task: Task, entries: Iterable[str]) -> bool:
    text = task.command if task.argv is None else shlex.join(task.argv)
    return any(
        re.fullmatch(entry, text or "") is not None
        if entry.startswith("^")
        else task.argv is not None and task.argv[0] == entry
        for entry in entries
    )
