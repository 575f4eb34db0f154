"""`jobq queues`, `jobq QUEUE size`, `peek`, `create`, `clear` and `delete`: queues as a whole."""

from typing import TYPE_CHECKING, Final

import click

from jobq.cli.common import ExampleCommand, Invocation, full_option, json_option, read_settings, with_queue
from jobq.cli.display import format_journal, format_task, terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.noted import noted
from jobq.errors import AccessDenied, ConfigurationError
from jobq.pausing import mark_field

if TYPE_CHECKING:
    from jobq.backend import Backend, QueueStats

_NOT_FOUND: Final = 4
_MOST_PEEKED: Final = 10_000
_ANY_NAME: Final = "demo"  # of the queues of this machine: all are in one file


@click.command(cls=ExampleCommand, examples=("jobq queues", "jobq queues --json"))
@json_option
@click.pass_context
def queues(ctx: click.Context, as_json: bool) -> int:
    """List the queues of this machine, or those beside a queue that is named."""
    settings = read_settings()
    invocation = ctx.ensure_object(Invocation)
    invocation.spec = invocation.spec or settings.queue or _ANY_NAME

    async def work(backend: "Backend") -> None:
        from jobq.servable import Servable  # noqa: PLC0415 - --help must not pay for it

        if not isinstance(backend, Servable):
            raise ConfigurationError("this service is not asked for its queues: its own tools list them")
        names = await backend.queues()
        if not names and not as_json:
            terminal.say("there is no queue yet; the first push makes one")
        for name in names:
            if as_json:
                terminal.put_json({"queue": name})
            else:
                terminal.put(name)

    return with_queue(ctx, work, settings, brief=True)


@click.command(
    cls=ExampleCommand,
    examples=(
        "jobq demo size",
        "jobq demo size --json",
        "jobq demo size --by shape",
        "while jobq demo size --fail-if-empty; do sleep 10; done",
    ),
)
@click.option("--fail-if-empty", is_flag=True, help="Exit 4 when no task is visible, leased or scheduled.")
@click.option("--by", type=click.Choice(["shape"]), help="Count what is visible by what it asks for (cpus, gpus...).")
@json_option
@click.pass_context
def size(ctx: click.Context, fail_if_empty: bool, by: str | None, as_json: bool) -> int:
    """Count the tasks: visible (could start now), leased (running), scheduled (for later), dead (given up).

    A Storage Queue counts the first three only together, and about: as total.
    """

    async def work(backend: "Backend") -> int:
        stats = await backend.stats()
        if by is not None:
            await _put_shapes(backend, as_json=as_json)
            return _NOT_FOUND if fail_if_empty and not stats.unfinished else 0
        if as_json:
            terminal.put_json(_counts(stats) | mark_field(stats.paused))
        else:
            for line in _table(stats):
                terminal.put(line)
            if stats.paused is not None:
                terminal.put(str(stats.paused))
        if fail_if_empty and not stats.is_known:
            raise AccessDenied("the service does not say how many tasks there are: give this identity the right to ask")
        return _NOT_FOUND if fail_if_empty and not stats.unfinished else 0

    return with_queue(ctx, work, brief=True)


async def _put_shapes(backend: "Backend", *, as_json: bool) -> None:
    from jobq.resources.request import described  # noqa: PLC0415 - for few
    from jobq.selecting import waiting_shapes  # noqa: PLC0415 - as above

    found = sorted(await waiting_shapes(backend), key=lambda each: -each.count)
    if not as_json:
        rows = [(str(each.count), described(*each.request) or "nothing") for each in found]
        width = max([len("visible"), *(len(count) for count, _ in rows)])
        for count, asks in [("visible", "asks for"), *rows]:
            terminal.put(f"{count:>{width}}  {asks}")
        return
    for each in found:
        resources, needs = each.request
        asked = ({} if resources is None else resources.as_dict()) | ({"needs": list(needs)} if needs else {})
        terminal.put_json({"visible": each.count} | asked)


def _counts(stats: "QueueStats") -> dict[str, int | None]:
    """Return the counts to show: a total only where the others are not known."""
    known = {name: getattr(stats, name) for name in ("visible", "leased", "scheduled", "dead", "total")}
    return {name: count for name, count in known.items() if name != "total" or count is not None}


def _table(stats: "QueueStats") -> list[str]:
    texts = {name: "?" if count is None else str(count) for name, count in _counts(stats).items()}
    columns = [(name.rjust(len(text)), text.rjust(len(name))) for name, text in texts.items()]
    return ["  ".join(row) for row in zip(*columns, strict=True)]


def _all(_context: click.Context, _parameter: click.Parameter, limit: int) -> int:
    if limit == 0:
        raise click.BadParameter("0 is not in the range 1<=x<=10000; -1 shows all that can be shown")
    return limit if limit > 0 else _MOST_PEEKED


@click.command(cls=ExampleCommand, examples=("jobq demo peek", "jobq demo peek -n 100 --json"))
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(-1, _MOST_PEEKED),
    default=10,
    callback=_all,
    help="How many at most; -1 = all that can be shown. Default: 10.",
)
@full_option
@json_option
@click.pass_context
def peek(ctx: click.Context, limit: int, full: bool, as_json: bool) -> int:
    """Show the next tasks without taking them: id, deliveries so far, what runs. Values of variables stay hidden."""

    async def work(backend: "Backend") -> None:
        tasks = await backend.peek(limit)
        if as_json:
            for found in tasks:
                held = format_task.as_json(found.body, env=False)
                terminal.put_json({"id": found.id, "deliveries": found.deliveries, **held})
        else:
            rows = [
                (terminal.visible(found.id), f"{found.deliveries:3}", format_task.what_runs(found.body))
                for found in tasks
            ]
            format_journal.put_rows(("ID", "DELIVERIES", "RUNS"), rows, full=full)
        most = backend.capabilities.max_peek
        if most is not None and len(tasks) >= most and limit > most:
            terminal.say(f"the first {most} are shown: this service shows no more, and there may be more")

    return with_queue(ctx, work, brief=True)


@click.command(
    cls=ExampleCommand, examples=("jobq demo create", "jobq sqlite:///data/jobs.db/demo create --no-exist-ok")
)
@click.option("--exist-ok/--no-exist-ok", default=True, help="Whether it may exist already. Default: it may.")
@json_option
@click.pass_context
def create(ctx: click.Context, exist_ok: bool, as_json: bool) -> int:
    """Make the queue and its dead-letter place. A first push does it too; a worker does not."""

    async def work(backend: "Backend") -> None:
        await backend.create(exist_ok=exist_ok)
        if as_json:
            terminal.put_json({"queue": backend.name})
        else:
            terminal.say(f"queue {backend.name} is there")

    return with_queue(ctx, work, brief=True)


@click.command(cls=ExampleCommand, examples=("jobq demo clear", "jobq demo clear --yes"))
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def clear(ctx: click.Context, yes: bool, as_json: bool) -> int:
    """Delete every task that waits or runs; a running one is stopped by its worker. Dead letters stay."""
    if not yes and not terminal.has_terminal_input():
        raise click.UsageError("clear deletes tasks for good and there is no terminal to ask on; add --yes")

    async def work(backend: "Backend") -> int:
        if not yes and not terminal.confirmed(f"Delete all tasks that wait or run on {backend.name}?"):
            terminal.say("nothing was deleted")
            return 1
        async with noted(backend, "clear") as change:
            change.count = count = await _cleared(backend)
            change.said = f"{count} deleted"
        if as_json:
            terminal.put_json({"queue": backend.name, "cleared": count})
        else:
            terminal.put(f"cleared {count} task{'' if count == 1 else 's'} from {terminal.visible(backend.name)}")
        return 0

    return with_queue(ctx, work)


@click.command(cls=ExampleCommand, examples=("jobq demo delete", "jobq demo delete --force"))
@click.option("--force", is_flag=True, help="Also with tasks and dead letters in it; what runs is stopped.")
@json_option
@click.pass_context
def delete(ctx: click.Context, force: bool, as_json: bool) -> int:
    """Delete the queue, its dead-letter place and what its journal knows; refused while it holds anything.

    Stop first who pushes to it: an Azure queue is looked at and deleted in two steps, and loses what comes between.
    Named leases stay, and so do the places that `push --resume` and `fanout` have reached: use other names for them.

    Not on PostgreSQL and over HTTP: there `clear` and `dead purge --all` leave its name alone.
    """

    async def work(backend: "Backend") -> None:
        from jobq.examination import Deletable  # noqa: PLC0415 - --help must not pay for it

        if not isinstance(backend, Deletable):
            raise ConfigurationError(
                "queues of this kind are not deleted; `clear` and `dead purge --all` leave nothing but the name"
            )
        stats = await backend.stats()
        if not force and (held := _held(stats)):
            raise click.UsageError(f"{terminal.visible(backend.name)} holds {held}; --force deletes it all the same")
        await backend.delete(only_empty=not force)
        if as_json:
            terminal.put_json({"queue": backend.name, "deleted": True})
        else:
            terminal.say(f"queue {terminal.visible(backend.name)} is deleted")

    return with_queue(ctx, work, brief=True)


def _held(stats: "QueueStats") -> str:
    """Return what is in a queue, in words; nothing where it is empty."""
    if not stats.is_known:
        return "nobody here may know how many tasks"
    parts = [(stats.unfinished, "task"), (stats.dead or 0, "dead letter")]
    return " and ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in parts if count)


async def _cleared(backend: "Backend") -> int:
    from jobq.clearing import ClearsInSteps, clear_in_steps  # noqa: PLC0415 - most commands clear nothing

    if not isinstance(backend, ClearsInSteps):
        return await backend.clear()
    with Bar("clearing", (await backend.stats()).unfinished) as bar:
        return (await clear_in_steps(backend, lambda count: bar.show(count, str(count)))).deleted
