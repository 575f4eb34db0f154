"""`jobq QUEUE fanout`: one task for each row, line or blob of a data set, or for each batch of them."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from jobq.cli import completions
from jobq.cli.common import ProgramCommand, json_option, program_of, read_settings, run_async, spec_of, time_limit
from jobq.cli.display import terminal
from jobq.cli.submit.push_options import asking

if TYPE_CHECKING:
    from jobq.settings import Settings
    from jobq.submit.pusher import Pusher
    from jobq.submit.record_sources import RecordSource

_HELP: Final = """Queue one task for each record of a data set, or for each batch of --batch records.

The records are the rows of a query (--sql, by a unique --key), the lines of a file (--lines) or the blobs of a
container (--blobs). In the words after `--` fields in braces are filled in, and no shell is run; a value with a leading
dash that could pass for an option is refused. A command for the shell, -c, stays as it is: values are its variables,
written "$PARAM_name" within double quotes, and the items of a batch its arguments, "$@".

\b
Fields of a record   rows: their columns; lines: line, number, offset; blobs: name, size
Fields of a batch    first and last (key, line or name), count, number, and items: all of them, a word each

An interrupted fanout is finished by running it again with the same NAME: nothing is left out, one page of 500 records
at most is queued again, and that under the same ids, which a queue that knows ids takes once.
"""
_EXAMPLES: Final = (
    "jobq demo fanout users --sql users.db 'SELECT id, name FROM users' --key id -- echo hello {name}",
    "jobq demo fanout files --lines files.txt -- wc -l -- {line}",
    """jobq demo fanout files2 --lines files.txt --batch 100 -c 'cat -- "$@" | wc -l'""",
    "jobq demo fanout scans --blobs myaccount/scans/2024/ -- python read.py --blob={name}",
)


class _FanoutCommand(ProgramCommand):
    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the shape of a command line."""
        return ["NAME", "[OPTIONS]", "[-c COMMAND | -- PROGRAM [ARGS]...]"]


@click.command(cls=_FanoutCommand, help=_HELP, examples=_EXAMPLES)
@click.argument("name")
@click.option(
    "--sql", nargs=2, metavar="DATABASE QUERY",
    help="The rows of a SELECT on an SQLite file or postgresql://USER@HOST/DATABASE, which is only read.",
)  # fmt: skip
@click.option("--key", metavar="COLUMN", help="With --sql: what the rows are walked by; unique, a number or a text.")
@click.option(
    "--lines", metavar="FILE", shell_complete=completions.files, help="The lines of a file; blank ones are left out."
)
@click.option("--blobs", metavar="ACCOUNT/CONTAINER[/PREFIX]", help="The blobs of a container of Azure Storage.")
@click.option("-c", "--command", metavar="COMMAND", help='A command for the shell, with "$PARAM_..." for the fields.')
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=1, metavar="N", help="Records of one task. Default: 1."
)
@click.option(
    "--timeout", metavar="DURATION", callback=time_limit, help="How long one attempt may run. Default: no limit."
)
@click.option("--priority", type=int, metavar="N", help="Higher first, where the queue knows priorities. Default: 0.")
@asking
@click.option("--num-retries", type=click.IntRange(min=0), metavar="N", help="Runs after a failure. Default: 3.")
@click.option(
    "--accept-changes", is_flag=True, help="With --lines: lines that are not queued yet may have changed meanwhile."
)
@click.option("--dry-run", is_flag=True, help="Print the first three tasks, and queue nothing.")
@click.option("--skip-refused", is_flag=True, help="Leave out, and name, records that are refused.")
@click.option("--no-create", is_flag=True, help="Do not make a missing queue, for which a mere sender has no right.")
@json_option
@click.pass_context
def fanout(
    ctx: click.Context,
    name: str,
    sql: tuple[str, str] | None,
    key: str | None,
    lines: str | None,
    blobs: str | None,
    command: str | None,
    batch: int,
    timeout: timedelta | None,
    priority: int | None,
    cpus: str | None,
    gpus: str | None,
    mem: str | None,
    needs: tuple[str, ...],
    num_retries: int | None,
    accept_changes: bool,
    dry_run: bool,
    skip_refused: bool,
    no_create: bool,
    as_json: bool,
) -> int:
    """Queue one task for each record; see _HELP."""
    program = program_of(ctx)
    if (command is None) == (not program):
        raise click.UsageError("what to run: a program and its arguments after `--`, or -c COMMAND for the shell")
    if accept_changes and lines is None:
        raise click.UsageError("--accept-changes goes with --lines")
    from jobq.cli.submit.cursor_lease import CursorLease, push_under_cursor  # noqa: PLC0415 - --help needs none of it
    from jobq.cli.submit.push_given import Echo, HowToPush  # noqa: PLC0415 - as above
    from jobq.cli.submit.record_push import RecordPush  # noqa: PLC0415 - as above
    from jobq.cli.submit.sweep import show_first  # noqa: PLC0415 - as above
    from jobq.spec import parse  # noqa: PLC0415 - as above
    from jobq.submit.command_template import ArgvTemplate, ShellTemplate  # noqa: PLC0415 - as above
    from jobq.submit.input_lines import TaskOptions, budgets_of  # noqa: PLC0415 - as above
    from jobq.submit.record_tasks import RecordTasks, named_by_record  # noqa: PLC0415 - as above
    from jobq.telemetry.push_tracing import traced_push  # noqa: PLC0415 - as above

    settings = read_settings(num_retries=num_retries)
    records = _records_of(ctx, sql, key, lines, blobs, settings)
    queue = parse(spec_of(ctx, settings))
    template = ShellTemplate(command) if command is not None else ArgvTemplate(program or ())
    options = TaskOptions(
        timeout=timeout.total_seconds() if timeout is not None else None,
        priority=priority,
        trace_context=ctx.with_resource(traced_push(queue.queue, queue.scheme, settings.telemetry)),
        budgets=budgets_of(settings),
        cpus=cpus,
        gpus=gpus,
        mem=mem,
        needs=needs or None,
    )
    mend = "mend it and go on with --accept-changes, or " if records.file is not None else ""
    tasks = RecordTasks(
        records=records,
        command=template,
        options=options,
        id_of=named_by_record(name),
        batch=batch,
        mend=f"; {mend}leave such records out with --skip-refused",
        leave_out=terminal.say if skip_refused else None,
    )
    tasks.check()
    if dry_run:
        return run_async(show_first(tasks, as_json=as_json))
    echo = Echo(ids=False, as_json=as_json)
    how = HowToPush(ctx=ctx, settings=settings, template=options, echo=echo, creates=not no_create, names=None)

    async def push(pusher: "Pusher", cursor: CursorLease) -> int:
        return await RecordPush(pusher=pusher, tasks=tasks).resumably(cursor, name, accepts_changes=accept_changes)

    code = push_under_cursor(how, f"fanout:{name}", push)
    echo.check()
    return code


def _records_of(
    ctx: click.Context,
    sql: tuple[str, str] | None,
    key: str | None,
    lines: str | None,
    blobs: str | None,
    settings: "Settings",
) -> "RecordSource":
    if sum(given is not None for given in (sql, lines, blobs)) != 1:
        raise click.UsageError("records come from one place: --sql, --lines or --blobs")
    if (key is None) != (sql is None):
        raise click.UsageError("--sql and --key go together: rows are walked by a column that is unique")
    from jobq.submit.record_sources import blob_records, line_records, row_records  # noqa: PLC0415 - as above

    if sql is not None and key is not None:
        return row_records(sql[0], sql[1], key)
    if lines is None:
        return blob_records(str(blobs), settings)
    records = line_records(Path(lines), terminal.say)
    if records.file is not None:
        ctx.with_resource(records.file)
    return records
