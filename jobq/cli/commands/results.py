"""`jobq QUEUE results --batch NAME`: a table of what the tasks of a batch came to."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobq.cli import completions
from jobq.cli.common import ExampleCommand, json_option, with_queue
from jobq.cli.display import terminal
from jobq.cli.display.progress_bar import Bar
from jobq.errors import JobqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobq.backend import Backend
    from jobq.results.rows import Row


class NotWritten(JobqError):
    """The file of a table cannot be written."""


@click.command(
    cls=ExampleCommand,
    examples=(
        "jobq demo results --batch s7 -o s7.csv",
        "jobq demo results --batch s7 -o s7.parquet    # pip install 'jobq[parquet]'",
        "jobq demo results --batch s7 --where state=dead --columns id,exit_code,detail",
        "jobq demo results --batch s7 --all-attempts -o attempts.jsonl",
    ),
)
@click.option("--batch", "name", metavar="NAME", help="Which batch.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", shell_complete=completions.files,
    help="A .csv, .jsonl or .parquet file. Default: JSON lines, to standard output.",
)  # fmt: skip
@click.option("--columns", metavar="NAMES", help="These alone, in this order, separated by commas.")
@click.option(
    "--where", multiple=True, metavar="COLUMN=PATTERN",
    help="Those rows of which this holds; * in PATTERN stands for anything. Several must all hold.",
)  # fmt: skip
@click.option("--all-attempts", is_flag=True, help="A row for each attempt, not for each task.")
@json_option
@click.pass_context
def results(
    ctx: click.Context,
    name: str | None,
    output: Path | None,
    columns: str | None,
    where: tuple[str, ...],
    all_attempts: bool,
    as_json: bool,
) -> int:
    """Write a table of what the tasks of a batch came to, in the order of their ids.

    Columns: id, state, outcome, exit_code, signal, attempts, host, started, ended (seconds since 1970), seconds,
    cpu_seconds, max_rss_bytes, detail; param.NAME for each value of --grid and --each; and what a task has returned
    (--call, or $JOBQ_RESULT_FILE): value, or value.a.b for each field of an object. A list is JSON text.

    The file is there when it is whole: one that is broken off leaves none. A batch that has not finished is written as
    it stands.
    """
    if name is None:
        raise click.UsageError(
            "of which batch? --batch NAME; `jobq QUEUE batch list` shows them, `jobq QUEUE status ID` what one came to"
        )
    only = None if columns is None else [each.strip() for each in columns.split(",") if each.strip()]
    if only == []:
        raise click.UsageError("--columns names columns, separated by commas")

    async def work(backend: "Backend") -> None:
        from jobq.batches import BatchState, batches_of  # noqa: PLC0415 - --help must not pay for it; so below
        from jobq.results import writers  # noqa: PLC0415
        from jobq.results.rows import rows  # noqa: PLC0415

        if output is not None:
            writers.check_file(output)
        found = await batches_of(backend).find(name)
        chosen = _where(rows(backend, name, all_attempts=all_attempts), where)
        if output is None:
            async for row in chosen:
                terminal.put_json(writers.wanted(row, only))
        else:
            with Bar("rows", found.total) as bar:
                try:
                    count = await writers.write_file(chosen, output, only, lambda done: bar.show(done, f"{done} rows"))
                except OSError as error:
                    raise NotWritten(f"-o {output}: {error.strerror or error}; nothing was left of it") from None
            if as_json:
                terminal.put_json({"file": str(output), "rows": count})
            else:
                terminal.say(f"wrote {count} row{'' if count == 1 else 's'} to {output}")
        if found.state is not BatchState.FINISHED:
            terminal.say(f"batch {name} has not finished: {found.unfinished} of its tasks are left")

    return with_queue(ctx, work, interruptible=True)


async def _where(rows: "AsyncIterator[Row]", texts: tuple[str, ...]) -> "AsyncIterator[Row]":
    from jobq.journal.filters import holds, parsed  # noqa: PLC0415 - as above

    conditions = parsed(texts, None)
    async for row in rows:
        if holds(conditions, row):
            yield row
