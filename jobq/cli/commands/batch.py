"""`jobq QUEUE batch list|show|wait|retry|cancel|seal|reopen`: what was pushed under one name."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from jobq.cli.common import (
    ExampleCommand,
    SuggestingGroup,
    duration,
    full_option,
    json_option,
    read_settings,
    with_queue,
)
from jobq.cli.display import format_journal, terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.noted import noted
from jobq.errors import JobqError
from jobq.formats import durations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from jobq.backend import Backend
    from jobq.batches import Batch, Batches
    from jobq.lease.store import LeaseRecord
    from jobq.settings import Settings

_PAGE: Final = 500
_UNKNOWN: Final = 75


@click.group(
    cls=SuggestingGroup,
    examples=(
        "jobq demo push --batch s7 tasks.txt    # begins one, and seals it",
        "jobq demo batch list",
        "jobq demo batch show s7",
        "jobq demo batch wait s7 --timeout 1h",
        "jobq demo batch retry s7",
    ),
)
def batch() -> None:
    """Look after batches: what `push --batch NAME` has queued under one name.

    A batch is open while tasks are pushed to it, sealed when no more come, and has finished when it is sealed and each
    of its tasks has ended: done, dead or canceled. What is put back after that is its next round.
    """


@batch.command(name="list", cls=ExampleCommand, examples=("jobq demo batch list", "jobq demo batch list --json"))
@full_option
@json_option
@click.pass_context
def list_(ctx: click.Context, full: bool, as_json: bool) -> int:
    """List batches by name: where they are, and how many of their tasks."""

    async def work(backend: "Backend") -> None:
        from jobq.batches import batches_of  # noqa: PLC0415 - --help must not pay for it; so below
        from jobq.cli.display import format_batch  # noqa: PLC0415

        after, rows = "", list[tuple[str, ...]]()
        while page := await batches_of(backend).list(after, _PAGE):
            for each in page:
                if as_json:
                    terminal.put_json(format_batch.as_json(each))
                else:
                    rows.append(format_batch.row(each))
            after = page[-1].name
            if len(page) < _PAGE:
                break
        format_journal.put_rows(format_batch.HEADINGS, rows, full=full)

    return with_queue(ctx, work, brief=True)


@batch.command(cls=ExampleCommand, examples=("jobq demo batch show s7", "jobq demo batch show s7 --cost --json"))
@click.argument("name")
@click.option("--cost", is_flag=True, help="Add up what all attempts have used, as far as the journal has them.")
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, cost: bool, as_json: bool) -> int:
    """Show where a batch is: its counts, now and at the end of each round.

    Of an open one, whether its push still goes on, where that can be gone on with; of a sealed one, about how long the
    rest takes, by what has ended of it in the last hour.
    """
    settings = read_settings()

    async def work(backend: "Backend") -> None:
        from jobq.batches import BatchState, batches_of  # noqa: PLC0415

        found = await batches_of(backend).find(name)
        lease = await _push_lease(backend, settings, found) if found.state is BatchState.OPEN else None
        more: dict[str, object] = {}
        pushing, spent = "", ""
        if lease is not None:
            pusher = more["pusher"] = None if lease.state != "active" else lease.holder
            pushing = f"{'nobody' if pusher is None else terminal.visible(pusher)} is pushing"
        if cost:
            from jobq.results.rows import cost_of  # noqa: PLC0415

            used = await cost_of(backend, name)
            more["cost"] = used._asdict()
            slots, cpu = (durations.show(round(each, 1)) for each in (used.seconds, used.cpu_seconds))
            spent = f"{slots} of slots, {cpu} of CPU, in {used.attempts} attempts"
        _put(found, as_json=as_json, more=more, pushing=pushing, spent=spent)

    return with_queue(ctx, work, settings, brief=settings.leases is None)  # else there are two queues to be looked at


async def _push_lease(backend: "Backend", settings: "Settings", found: "Batch") -> "LeaseRecord | None":
    """Return the lease under which a push to a batch goes on; None = it has none, or nobody here may know."""
    from jobq.cli.submit.cursor_lease import keeper_of, life_of  # noqa: PLC0415
    from jobq.lease.store import store_of  # noqa: PLC0415

    try:
        async with keeper_of(backend, settings) as held:
            return await store_of(held).read(f"push:{found.name}.{life_of(found)}")
    except JobqError:  # what was asked for is the batch
        return None


@batch.command(cls=ExampleCommand, examples=("jobq demo batch wait s7", "jobq demo batch wait s7 --timeout 1h"))
@click.argument("name")
@click.option(
    "--timeout", metavar="DURATION", callback=duration, help="How long; then end with 75. Default: until it finishes."
)
@json_option
@click.pass_context
def wait(ctx: click.Context, name: str, timeout: timedelta | None, as_json: bool) -> int:
    """Wait until a batch has finished; end with 0 if each of its tasks is done, else with 1.

    An open one has to be sealed first: by the push that adds to it, or by `batch seal`. With --timeout it ends with 75
    when the time is over.
    """

    async def work(backend: "Backend") -> int:
        from jobq.batches import batches_of  # noqa: PLC0415
        from jobq.cli.display import format_batch  # noqa: PLC0415
        from jobq.submit.batch_end import finished  # noqa: PLC0415

        with Bar("waiting") as bar:
            found, ended = await finished(
                batches_of(backend),
                name,
                timeout=timeout,
                on_look=lambda seen: bar.show(seen.total - seen.unfinished, format_batch.progress(seen)),
                away=lambda error: terminal.say(f"{error}; still waiting", is_error=True),
            )
        _put(found, as_json=as_json)
        if not ended:
            terminal.say(f"batch {name} has not finished: {found.unfinished} of its tasks are left", is_error=True)
            return _UNKNOWN
        return 0 if found.total == found.counts["succeeded"] else 1

    return with_queue(ctx, work, interruptible=True)


@batch.command(cls=ExampleCommand, examples=("jobq demo batch retry s7",))
@click.argument("name")
@json_option
@click.pass_context
def retry(ctx: click.Context, name: str, as_json: bool) -> int:
    """Put the dead letters of a batch back into the queue, with fresh budgets; to be run again if it is interrupted.

    One that has finished goes on in its next round, and its end is told again.
    """

    async def work(backend: "Backend") -> None:
        from jobq.batches import batches_of  # noqa: PLC0415
        from jobq.submit.batch_end import put_back  # noqa: PLC0415

        with Bar("retried") as bar:
            async with noted(backend, "retry-batch", meant=f"batch={name}") as change:
                count = await put_back(backend, name, on_progress=lambda done: bar.show(done, str(done)))
                change.count, change.said = count, f"{count} put back"
        if as_json:
            _put(await batches_of(backend).find(name), as_json=True)
        else:
            terminal.put(f"retried {count} task{'' if count == 1 else 's'} of batch {name}")

    return with_queue(ctx, work)


@batch.command(cls=ExampleCommand, examples=("jobq demo batch cancel s7 --yes",))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def cancel(ctx: click.Context, name: str, yes: bool, as_json: bool) -> int:
    """Cancel a batch: seal it, end what waits, and stop what runs, as `jobq QUEUE cancel` does."""
    if not yes and not terminal.has_terminal_input():
        raise click.UsageError("batch cancel ends all its tasks and there is no terminal to ask on; add --yes")

    async def work(backend: "Backend") -> int:
        from jobq.batches import batches_of  # noqa: PLC0415
        from jobq.submit.batch_end import canceled  # noqa: PLC0415

        found = await batches_of(backend).find(name)
        if not yes and not terminal.confirmed(f"Cancel {found.unfinished} tasks of batch {name}?"):
            terminal.say("nothing was canceled")
            return 1
        with Bar("canceled", found.unfinished) as bar:
            async with noted(backend, "cancel-batch", meant=f"batch={name}") as change:
                change.count = found.unfinished
                found = await canceled(
                    batches_of(backend),
                    name,
                    on_look=lambda seen: bar.show(seen.counts["canceled"], f"{seen.unfinished} left"),
                )
                change.said = f"{found.counts['canceled']} canceled, {found.unfinished} left"
        _put(found, as_json=as_json)
        return 0

    return with_queue(ctx, work)


@batch.command(cls=ExampleCommand, examples=("jobq demo batch seal s7",))
@click.argument("name")
@json_option
@click.pass_context
def seal(ctx: click.Context, name: str, as_json: bool) -> int:
    """Let a batch take no more tasks: it finishes when those that it has have ended."""
    return _changed(ctx, lambda batches: batches.seal(name), as_json=as_json)


@batch.command(cls=ExampleCommand, examples=("jobq demo batch reopen s7",))
@click.argument("name")
@json_option
@click.pass_context
def reopen(ctx: click.Context, name: str, as_json: bool) -> int:
    """Let a batch take tasks again, in its next round if it has finished; then seal it again."""
    return _changed(ctx, lambda batches: batches.reopen(name), as_json=as_json)


def _changed(ctx: click.Context, change: "Callable[[Batches], Awaitable[Batch]]", *, as_json: bool) -> int:
    async def work(backend: "Backend") -> None:
        from jobq.batches import batches_of  # noqa: PLC0415

        _put(await change(batches_of(backend)), as_json=as_json)

    return with_queue(ctx, work, brief=True)


def _put(
    found: "Batch",
    *,
    as_json: bool,
    more: "Mapping[str, object] | None" = None,
    pushing: str = "",
    spent: str = "",
) -> None:
    from jobq.cli.display import format_batch  # noqa: PLC0415

    if as_json:
        terminal.put_json({**format_batch.as_json(found), **(more or {})})
        return
    for label, text in [*format_batch.details(found, pushing), *([("cost", spent)] if spent else [])]:
        terminal.put(f"{label + ':':<12}{text}")
