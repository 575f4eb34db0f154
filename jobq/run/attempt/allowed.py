"""Which tasks a worker runs, where it is limited (rules.md 3, A1): lists of commands, functions and variables."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from jobq.errors import ConfigurationError
from jobq.settings import Settings
from jobq.task import Task

if TYPE_CHECKING:
    from jobq.signing.keys import TrustedKey

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

    Args:
        task: as it was received.
        settings: the worker's, with its lists.
    """
    lists = Lists(settings.allow_commands, settings.allow_calls, settings.allow_variables)
    return lists.refusal(task, "JOBQ_ALLOW_COMMANDS", "JOBQ_ALLOW_CALLS", "JOBQ_ALLOW_VARIABLES")


def by_key(task: Task, key: "TrustedKey") -> str | None:
    """Return why a key may not have signed this task; None = it may."""
    named = f"of its key {key.id}"
    if (key.commands or key.calls) and all(each is None for each in (task.command, task.argv, task.call)):
        return f"it is for a function of the worker's program, which is not among the functions {named}"
    lists = Lists(key.commands, key.calls, key.variables)
    return lists.refusal(task, f"the commands {named}", f"the functions {named}", f"the variables {named}")


@dataclass(frozen=True)
class Lists:
    """What may run.

    A list of commands allows no functions, and the reverse. Folders and variables change what a command does
    (`BASH_ENV`, `LD_PRELOAD`, a module beside the one that is meant), so a task brings none that are not listed.

    Attributes:
        commands: programs, and regular expressions that begin with ^.
        calls: functions.
        variables: patterns of names. Without commands and calls there are no limits.
    """

    commands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    def refusal(self, task: Task, commands: str, calls: str, variables: str) -> str | None:
        """Return why a task is not allowed, given what the lists are called; None = it is."""
        if not (self.commands or self.calls):
            return None
        if task.call is not None and task.call not in self.calls:
            return f"{task.call} is not among {calls}"
        is_command = task.command is not None or task.argv is not None
        if is_command and not _is_command_allowed(task, self.commands):
            return f"its command is not among {commands}"
        if task.cwd is not None:
            return "it names a folder to run in, and what such lists name runs where the worker was started"
        for name in task.env:
            if not any(fnmatchcase(name, pattern) for pattern in self.variables):
                return f"it brings the variable {name}, which is not among {variables}"
        return None


def _is_command_allowed(task: Task, entries: Iterable[str]) -> bool:
    text = task.command if task.argv is None else shlex.join(task.argv)
    return any(
        re.fullmatch(entry, text or "") is not None
        if entry.startswith("^")
        else task.argv is not None and task.argv[0] == entry
        for entry in entries
    )
