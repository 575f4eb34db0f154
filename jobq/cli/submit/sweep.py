"""What `--grid` and `--each` mean, for `push` and for `run`: the tasks of a sweep, and a look at the first of them."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli import completions
from jobq.cli.display import terminal

if TYPE_CHECKING:
    from jobq.submit.input_lines import TaskOptions
    from jobq.submit.record_tasks import RecordTasks
    from jobq.task import Task

_SHOWN: Final = 3
GRID: Final = click.option(
    "--grid", "grids", multiple=True, metavar="NAME=VALUES",
    help="A task for each value: a,b,c or 1..50, 1..50..5, 01..50. Several make each combination, the first name"
    " slowest.",
)  # fmt: skip
EACH: Final = click.option(
    "--each", metavar="FILE", shell_complete=completions.files,
    help="A task for each record of a .csv, .tsv or .jsonl FILE; its columns or keys are the names.",
)  # fmt: skip


def sweep_of(
    ctx: click.Context,
    grids: Sequence[str],
    each: str | None,
    commands: Sequence[str],
    argv: Sequence[str] | None,
    options: "TaskOptions",
) -> "RecordTasks":
    """Return the tasks of a sweep, which are looked at as far as they can be before anything is queued.

    Args:
        ctx: of the command; at its end the file is closed.
        grids: NAME=VALUES each.
        each: the file.
        commands: for the shell.
        argv: a program and its arguments.
        options: what all tasks have.

    Raises:
        UsageError: there is not one command to fill in.
        InvalidGrid, InvalidTemplate, MalformedTask, InputUnreadable: as they say.
    """
    if len(commands) + bool(argv) != 1:
        raise click.UsageError(
            "--grid and --each are for one command: a program and its arguments after `--`, with {name} for the values,"
            ' or one -c COMMAND for the shell, with "$PARAM_name"'
        )
    from jobq.submit.command_template import ArgvTemplate, ShellTemplate  # noqa: PLC0415 - --help must not pay for it
    from jobq.submit.points import point_records  # noqa: PLC0415 - as above
    from jobq.submit.record_tasks import RecordTasks  # noqa: PLC0415 - as above

    template = ArgvTemplate(argv) if argv else ShellTemplate(commands[0])
    records = point_records(grids, each, terminal.say)
    if records.file is not None:
        ctx.call_on_close(records.file.close)
    tasks = RecordTasks(records=records, command=template, options=options)
    tasks.check()
    return tasks


async def show_first(tasks: "RecordTasks", *, as_json: bool) -> int:
    """Print what the first tasks would be, and how many there are; nothing is queued. Return the exit code."""
    records = tasks.records
    page = await records.fetch(None, _SHOWN * tasks.batch)
    first = list(tasks.tasks(page.items, 0))
    if as_json:
        terminal.put_json({"count": records.count, "first": [_as_json(task, tasks) for task in first]})
        return 0
    for task in first:
        terminal.put(_as_text(task, tasks))
    count = "one for each record" if records.count is None else f"{records.count}, in this order"
    terminal.say(f"tasks: {count}; nothing is queued")
    return 0


def _own(task: "Task", tasks: "RecordTasks") -> dict[str, str]:
    """Return the variables that the record brings; others may be secrets (A5)."""
    return {name: value for name, value in task.env.items() if tasks.options.env.get(name) != value}


def _as_text(task: "Task", tasks: "RecordTasks") -> str:
    if task.argv is not None:
        return shlex.join(task.argv)
    from jobq.cli.display.format_task import as_shell  # noqa: PLC0415 - most pushes show nothing

    return as_shell(str(task.command), _own(task, tasks))


def _as_json(task: "Task", tasks: "RecordTasks") -> dict[str, Any]:
    named = {} if tasks.id_of is None else {"id": task.id}
    if task.argv is not None:
        return {**named, "argv": list(task.argv)}
    return {**named, "command": task.command, "env": _own(task, tasks)}
