"""`jobq QUEUE fanout`: one task for each row, line or blob of a data set, or for each batch of them."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli.common import ProgramCommand, json_option, program_of, read_settings, spec_of, time_limit, with_queue
from jobq.cli.display import terminal

if TYPE_CHECKING:
    from jobq.backend import Backend

_HELP: Final = """Queue one task for each record of a data set, or for each batch of --batch records.

The records are the rows of a query (--sql, by a unique --key), the lines of a file (--lines) or the blobs of a
container (--blobs). In the words after `--` fields in braces are filled in, and no shell is run; a value with a leading
dash that could pass for an option is refused. A command for the shell, -c, stays as it is: values are its variables,
written "$FANOUT_name" within double quotes, and the items of a batch its arguments, "$@".

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
@click.option("--lines", metavar="FILE", help="The lines of a file; blank ones are left out.")
@click.option("--blobs", metavar="ACCOUNT/CONTAINER[/PREFIX]", help="The blobs of a container of Azure Storage.")
@click.option("-c", "--command", metavar="COMMAND", help='A command for the shell, with "$FANOUT_..." for the fields.')
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=1, metavar="N", help="Records of one task. Default: 1."
)
@click.option(
    "--timeout", metavar="DURATION", callback=time_limit, help="How long one attempt may run. Default: no limit."
)
@click.option("--priority", type=int, metavar="N", help="Higher first, where the queue knows priorities. Default: 0.")
@click.option("--num-retries", type=click.IntRange(min=0), metavar="N", help="Runs after a failure. Default: 3.")
@click.option(
    "--accept-changes", is_flag=True, help="With --lines: lines that are not queued yet may have changed meanwhile."
)
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
    num_retries: int | None,
    accept_changes: bool,
    skip_refused: bool,
    no_create: bool,
    as_json: bool,
) -> int:
    """Queue one task for each record; see _HELP."""
    if sum(given is not None for given in (sql, lines, blobs)) != 1:
        raise click.UsageError("records come from one place: --sql, --lines or --blobs")
    program = program_of(ctx)
    if (command is None) == (not program):
        raise click.UsageError("what to run: a program and its arguments after `--`, or -c COMMAND for the shell")
    if (key is None) != (sql is None):
        raise click.UsageError("--sql and --key go together: rows are walked by a column that is unique")
    if accept_changes and lines is None:
        raise click.UsageError("--accept-changes goes with --lines")
    from jobq.cli.submit.cursor_lease import cursor_of  # noqa: PLC0415 - `jobq fanout --help` needs none of it
    from jobq.cli.submit.fanout_job import Fanout, check  # noqa: PLC0415 - as above
    from jobq.cli.submit.push_given import Echo, pusher_to  # noqa: PLC0415 - `jobq fanout --help` needs none of it
    from jobq.spec import parse  # noqa: PLC0415 - as above
    from jobq.submit.command_template import ArgvTemplate, ShellTemplate  # noqa: PLC0415 - as above
    from jobq.submit.input_lines import TaskOptions, budgets_of  # noqa: PLC0415 - as above
    from jobq.submit.record_sources import blob_records, line_records, row_records  # noqa: PLC0415 - as above
    from jobq.telemetry.push_tracing import traced_push  # noqa: PLC0415 - as above

    settings = read_settings(num_retries=num_retries)
    queue = parse(spec_of(ctx, settings))
    template = ShellTemplate(command) if command is not None else ArgvTemplate(program or ())
    options: dict[str, Any] = {
        "timeout": timeout.total_seconds() if timeout is not None else None,
        "priority": priority,
        "trace_context": ctx.with_resource(traced_push(queue.queue, queue.scheme, settings.telemetry)),
        "budgets": budgets_of(settings),
    }
    if sql is not None and key is not None:
        records = row_records(sql[0], sql[1], key)
    elif lines is not None:
        records = line_records(Path(lines), terminal.say)
        if records.file is not None:
            ctx.with_resource(records.file)
    else:
        records = blob_records(str(blobs), settings)
    check(template, records, batch)
    echo = Echo(ids=False, as_json=as_json)

    async def work(backend: "Backend") -> int:
        creates = not no_create
        async with cursor_of(backend, queue, settings, f"fanout:{name}", creates=creates, says=not as_json) as cursor:
            spread = Fanout(
                pusher=pusher_to(backend, echo, creates=creates),
                cursor=cursor,
                name=name,
                records=records,
                command=template,
                template=TaskOptions(**options),
                batch=batch,
                accepts_changes=accept_changes,
                skips_refused=skip_refused,
            )
            return await spread.run()

    code = with_queue(ctx, work, settings)
    echo.check()
    return code
