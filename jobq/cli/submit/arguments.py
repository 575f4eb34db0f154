"""One command and its lists of arguments, for `jobq run`: what `:::` and its kin mean, and a look at the jobs."""

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from jobq.cli.display import terminal

if TYPE_CHECKING:
    from jobq.cli.localrun.argument_input import ArgumentInput
    from jobq.submit.input_lines import TaskOptions

MARKS: Final = (":::", ":::+", "::::", "::::+")
_LISTS: Final = "jobq.argument_lists"  # where a command line's lists are kept apart


def take_lists(ctx: click.Context, args: list[str]) -> list[str]:
    """Keep what stands from the first `:::` on apart for `lists_in`; return what stands before it."""
    first = next((place for place, word in enumerate(args) if word in MARKS), len(args))
    if first < len(args):
        ctx.meta[_LISTS] = tuple(args[first:])
    return args[:first]


def lists_in(ctx: click.Context) -> tuple[str, ...]:
    """Return the words of the lists that were given."""
    words: tuple[str, ...] = ctx.meta.get(_LISTS, ())
    return words


def arguments_of(
    lists: Sequence[str],
    command: str | None,
    program: Sequence[str] | None,
    *,
    null: bool,
    max_args: int,
) -> "ArgumentInput":
    """Return the jobs of one command, which is looked at as far as it can be before anything is queued.

    Args:
        lists: the words of the lists; none = standard input is the list.
        command: for the shell.
        program: a program and its arguments; this or a command is given.
        null: whether a NUL ends each value of a file or pipe.
        max_args: how many values a job has.

    Raises:
        UsageError, InvalidLists, InvalidTemplate: as they say.
    """
    from jobq.cli.localrun.argument_input import ArgumentInput  # noqa: PLC0415 - `jobq run --help` needs none of it
    from jobq.submit.argument_lists import ArgumentList, Arguments, ListForm, lists_of  # noqa: PLC0415 - as above
    from jobq.submit.argument_template import ArgumentShell, ArgumentWords  # noqa: PLC0415 - as above

    if (command is None) == (not program):
        raise click.UsageError(
            "lists of arguments are for one command: a program and its arguments after `--`, with {} for an argument,"
            ' or one -c COMMAND for the shell, with "$ARG_1"'
        )
    found = lists_of(lists) if lists else [ArgumentList("standard input", path="-")]
    if any(one.path == "-" for one in found) and terminal.has_terminal_input():
        raise click.UsageError("nothing to run: give arguments behind :::, or pipe them; a terminal is not read")
    arguments = Arguments(found, ListForm(end=b"\0" if null else b"\n", per_job=max_args))
    template = ArgumentShell(command) if command is not None else ArgumentWords(program or ())
    template.check(arguments.count)
    return ArgumentInput(arguments, template, _again(lists, command, program, null=null, max_args=max_args))


def _again(
    lists: Sequence[str],
    command: str | None,
    program: Sequence[str] | None,
    *,
    null: bool,
    max_args: int,
) -> list[str]:
    words = ["-0"] if null else []
    words += ["-N", str(max_args)] if max_args > 1 else []
    return [*words, *(["-c", command] if command is not None else ["--", *(program or ())]), *lists]


async def show_all(jobs: "ArgumentInput", options: "TaskOptions", *, as_json: bool) -> int:
    """Print what would be run, a line for each job; nothing is. Return the exit code.

    Args:
        jobs: all of them.
        options: what all tasks have.
        as_json: print an object for each.
    """
    from jobq.cli.display.format_task import as_shell  # noqa: PLC0415 - most runs show nothing

    async for task in jobs.tasks(options):
        if as_json:
            own = {"argv": list(task.argv)} if task.argv is not None else {"command": task.command}
            terminal.put_json({**own, "env": dict(task.env)})
        elif task.argv is not None:
            terminal.put(shlex.join(task.argv))
        else:
            terminal.put(as_shell(str(task.command), task.env))
    return 0


def slots_of(text: str) -> int:
    """Return how many jobs run at once by `-j`: a number, +N or -N beside the processors, or a percentage of them.

    Raises:
        UsageError: it is none of these.
    """
    processors = len(os.sched_getaffinity(0))
    number, is_share = text.removesuffix("%"), text.endswith("%")
    try:
        value = int(number)
    except ValueError:
        raise click.UsageError(f"-j {text}: a number, +0 for each processor, or a share of them such as 50%") from None
    if is_share:
        return max(1, processors * value // 100)
    if text.startswith(("+", "-")):
        return max(1, processors + value)
    if value < 1:
        raise click.UsageError(f"-j {text}: a number from 1; +0 is one for each processor")
    return min(value, 4096)
