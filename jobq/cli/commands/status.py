"""`jobq QUEUE status`, `ps` and `stats`: what the journal knows."""

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from jobq.cli import completions, whole_ids
from jobq.cli.common import (
    ExampleCommand,
    batch_option,
    duration,
    full_option,
    json_option,
    read_settings,
    spec_of,
    with_queue,
)
from jobq.cli.display import format_journal, terminal
from jobq.errors import ConfigurationError

if TYPE_CHECKING:
    from jobq.backend import Backend
    from jobq.journal.records import TaskRecord

_MOST_LISTED: Final = 1_000_000
_SOME_ID: Final = "01a1fe07-5953-7359-9cd5-f423114d42f8"
_HOUR: Final = timedelta(hours=1)


@click.command(
    cls=ExampleCommand,
    examples=(f"jobq demo status {_SOME_ID}", f"jobq demo status {_SOME_ID} --json"),
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completions.ids)
@json_option
@click.pass_context
def status(ctx: click.Context, ids: tuple[str, ...], as_json: bool) -> int:
    """Show where tasks are now: state, worker, lease, progress, each attempt that has ended, and the last one's result.

    A task is ready, scheduled, running, expired (its worker is gone; it starts again), succeeded, dead or canceled.
    """

    async def work(backend: "Backend") -> int:
        from jobq.journal.store import MOST_IDS, journal_of  # noqa: PLC0415 - --help must not pay for it

        journal = journal_of(backend)
        asked = await whole_ids.of_tasks(backend, ids)
        found: dict[str, TaskRecord] = {}
        for start in range(0, len(asked), MOST_IDS):
            found |= {record.id: record for record in await journal.find(asked[start : start + MOST_IDS])}
        for number, id_ in enumerate(dict.fromkeys(id_ for id_ in asked if id_ in found)):
            attempts = await journal.attempts(id_)
            if as_json:
                ended = [format_journal.attempt_as_json(attempt) for attempt in attempts]
                terminal.put_json({**format_journal.record_as_json(found[id_]), "attempts": ended})
                continue
            if number:
                terminal.put("")
            for label, text in format_journal.details(found[id_], attempts):
                terminal.put(f"{label and f'{label}:':<14}{text}")
        return say_missing([id_ for id_ in asked if id_ not in found], as_json=as_json)

    return with_queue(ctx, work, brief=True)


def say_missing(ids: list[str], *, as_json: bool) -> int:
    """Complain about ids that name nothing, if there are any; return the exit code."""
    if not ids:
        return 0
    return terminal.not_found(f"no task with the id {', '.join(ids)} is known", as_json=as_json, ids=ids)


@click.command(
    cls=ExampleCommand,
    examples=("jobq demo ps", "watch jobq demo ps", "jobq demo ps --batch s7", "jobq demo ps --json"),
)
@click.option(
    "-n", "--limit", type=click.IntRange(1, _MOST_LISTED), default=1000, help="How many at most. Default: 1000."
)
@batch_option
@full_option
@json_option
@click.pass_context
def ps(ctx: click.Context, limit: int, batch: str | None, full: bool, as_json: bool) -> int:
    """Show what runs: worker, age, attempt, progress, CPU and memory, what is left of the lease, what runs.

    What is shown of a running task is as old as its last heartbeat, which comes four times in a lease. A task whose
    lease is over does not run any more: its worker died, and the next one that asks starts it again. The last line says
    how many wait, how fast tasks end, and about how long the rest takes; a journal in a table is too slow for that.
    With --batch it says that of the batch.
    """

    async def work(backend: "Backend") -> None:
        from jobq.journal.store import journal_of  # noqa: PLC0415 - as above

        journal = journal_of(backend)
        if batch is not None:
            from jobq.batches import batches_of  # noqa: PLC0415 - as above
            from jobq.cli.display import format_batch  # noqa: PLC0415 - as above

            seen = await batches_of(backend).find(batch)
        records = await (journal.running(limit) if batch is None else journal.running(limit, batch))
        if as_json:
            for record in records:
                terminal.put_json(format_journal.record_as_json(record))
            return
        for line in format_journal.running(records, 0 if full else terminal.width()) if records else ():
            terminal.put(line)
        if batch is not None:
            terminal.say(f"batch {batch}: {format_batch.how_far(seen)}")
            return
        found = None if backend.capabilities.journal_lags else await journal.stats(_HOUR.total_seconds())
        terminal.say(format_journal.how_far(len(records), found))

    return with_queue(ctx, work, brief=True)


@click.command(
    cls=ExampleCommand,
    examples=("jobq demo stats", "jobq demo stats --window 10m --json", "jobq demo stats --prometheus"),
)
@click.option(
    "--window", metavar="DURATION", callback=duration, help="How far back to count what has ended. Default: 1h."
)
@click.option(
    "--prometheus", is_flag=True, help="Print what the queue holds in the text format of Prometheus; for any queue."
)
@json_option
@click.pass_context
def stats(ctx: click.Context, window: timedelta | None, prometheus: bool, as_json: bool) -> int:
    """Count the tasks by state, what ended lately, and how long the oldest has waited."""
    if prometheus:
        if as_json or window is not None:
            raise click.UsageError("--prometheus has no window, and is no JSON")
        return _put_exposition(ctx)

    async def work(backend: "Backend") -> None:
        from jobq.journal.store import journal_of  # noqa: PLC0415 - as above

        seconds = (window or _HOUR).total_seconds()
        found = await journal_of(backend).stats(seconds)
        paused = (await backend.stats()).paused
        oldest = found.oldest_ready_seconds
        if as_json:
            terminal.put_json(
                {
                    "states": dict(found.states),
                    "ended": dict(found.ended),
                    "window_s": seconds,
                    "attempts_per_s": round(found.rate, 3),
                    "left_s": None if found.seconds_left is None else round(found.seconds_left, 1),
                    "oldest_ready_s": None if oldest is None else round(oldest, 1),
                    "paused": None if paused is None else asdict(paused),
                }
            )
            return
        if paused is not None:
            terminal.put(str(paused))
        for state, count in found.states.items():
            terminal.put(f"{state + ':':<14}{count}")
        terminal.put(f"{'oldest ready:':<14}{'-' if oldest is None else format_journal.age(oldest)}")
        ended = ", ".join(f"{count} {terminal.visible(outcome)}" for outcome, count in sorted(found.ended.items()))
        terminal.put(
            f"attempts ended in the last {format_journal.age(seconds)}: {ended or 'none'}{format_journal.pace(found)}"
        )

    return with_queue(ctx, work, brief=True)


def _put_exposition(ctx: click.Context) -> int:
    settings = read_settings()
    spec = spec_of(ctx, settings)

    async def work(backend: "Backend") -> None:
        from jobq.spec import parse  # noqa: PLC0415 - as above
        from jobq.telemetry.queue_snapshot import look  # noqa: PLC0415 - as above

        try:
            from jobq.telemetry.metrics import QueueMetrics, exposition  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise ConfigurationError("--prometheus needs the extra otel: pip install 'jobq[otel]'") from error
        figures = exposition(QueueMetrics(backend.name, parse(spec).scheme, await look(backend)))
        for line in figures.decode().splitlines():
            terminal.put(line)

    return with_queue(ctx, work, settings)
