"""`jobq QUEUE lease run|list|show|release`: leases on names, and commands that live as long as they do."""

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli.common import (
    ExampleCommand,
    SuggestingGroup,
    duration,
    json_option,
    read_settings,
    run_async,
    spec_of,
    with_queue,
)
from jobq.cli.display import terminal
from jobq.formats import durations

if TYPE_CHECKING:
    from jobq.backend import Backend
    from jobq.lease.store import LeaseRecord
    from jobq.settings import Settings

_CONFLICT: Final = 75
_ARGV: Final = "jobq.argv"
_SHOWN_CURSOR: Final = 60

_RUN_HELP: Final = """Run a command while a lease on NAME is held; wherever it is started, one runs at a time.

The command's whole process tree is killed before the lease can expire: when it cannot be renewed in time, when this
process is killed, stopped or blocked. It finds JOBQ_LEASE_TOKEN, which rises with every grant of NAME: let what it
writes to refuse a lower one, for no lease can stop a machine that is frozen and comes back.

Signals are passed on; SIGTERM, SIGHUP and SIGINT are followed by SIGKILL after --stop-grace, and a second Ctrl-C kills
at once. The command finds /dev/null as its standard input.

Exit code: the command's, 128+n if signal n ended it, 127 if it could not be started. 75 (--conflict-exit-code) when the
lease is held elsewhere or was lost; standard error says which.
"""


@click.group(
    cls=SuggestingGroup,
    examples=(
        "jobq demo lease run nightly -- ./backup.sh",
        "jobq demo lease list",
        "jobq demo lease show nightly --json",
    ),
)
def lease() -> None:
    """Hold a name: run a command that is alone in holding it, and look at who holds what."""


class _RunCommand(ExampleCommand):
    """Keeps what follows the first `--` apart: it is the command's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before `--`."""
        if "--" in args:
            position = args.index("--")
            ctx.meta[_ARGV] = tuple(args[position + 1 :])
            args = args[:position]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the shape of a command line."""
        return ["[OPTIONS]", "NAME", "--", "PROGRAM [ARGS]..."]


@lease.command(
    cls=_RunCommand,
    help=_RUN_HELP,
    short_help="Run a command while the lease is held.",
    examples=(
        "jobq demo lease run nightly -- ./backup.sh",
        "jobq demo lease run nightly --no-wait --conflict-exit-code 0 -- ./backup.sh",
        "jobq demo lease run leader --ttl 15s --wait-at-most 1m -- sh -c 'echo token $JOBQ_LEASE_TOKEN'",
    ),
)
@click.argument("name")
@click.option(
    "--ttl", metavar="DURATION", callback=duration,
    help="How long the lease outlasts its last renewal. Default: the store's, 1m.",
)  # fmt: skip
@click.option("--wait/--no-wait", default=True, help="Whether to wait while it is held elsewhere. Default: wait.")
@click.option("--wait-at-most", metavar="DURATION", callback=duration, help="How long to wait. Default: no limit.")
@click.option(
    "--conflict-exit-code", metavar="N", type=click.IntRange(0, 255), default=_CONFLICT,
    help="Exit code when the lease is held elsewhere or was lost. Default: 75.",
)  # fmt: skip
@click.option(
    "--stop-grace", metavar="DURATION", callback=duration,
    help="From SIGTERM to SIGKILL for the command when this is to end. Default: 20s.",
)  # fmt: skip
@click.pass_context
def run(
    ctx: click.Context,
    name: str,
    ttl: timedelta | None,
    wait: bool,
    wait_at_most: timedelta | None,
    conflict_exit_code: int,
    stop_grace: timedelta | None,
) -> int:
    """Run a command while the lease is held; see _RUN_HELP."""
    argv: tuple[str, ...] | None = ctx.meta.get(_ARGV)
    if not argv or not argv[0]:
        raise click.UsageError("which program? Write it after `--`: jobq QUEUE lease run NAME -- PROGRAM ARGS")
    if not wait and wait_at_most is not None:
        raise click.UsageError("--no-wait and --wait-at-most contradict each other")
    settings = read_settings(stop_grace=stop_grace).copied({"restart": 0})
    spec = spec_of(ctx, settings)
    from jobq.run.spawn.choose_spawner import below_guardian  # noqa: PLC0415 - `jobq lease --help` needs none of it

    settings = below_guardian(sys.argv[1:], settings)
    wanted = {"ttl": ttl or settings.lease_ttl, "wait": wait_at_most or wait}
    with terminal.by_thread():
        return run_async(_run(spec, settings, name, argv, wanted, conflict_exit_code))


async def _run(
    spec: str, settings: "Settings", name: str, argv: tuple[str, ...], wanted: dict[str, Any], conflict: int
) -> int:
    from jobq.cli.display.logging_handler import LogRecords  # noqa: PLC0415 - `jobq lease --help` needs none of it
    from jobq.cli.submit.create_queue import ready_for_lease  # noqa: PLC0415 - `jobq lease --help` needs none of it
    from jobq.clock import clock_of  # noqa: PLC0415 - as above
    from jobq.errors import LeaseHeld  # noqa: PLC0415 - as above
    from jobq.lease.named import named_lease  # noqa: PLC0415 - as above
    from jobq.lease.store import store_of  # noqa: PLC0415 - as above
    from jobq.run.spawn.choose_spawner import keep_clock, spawner_for  # noqa: PLC0415 - as above
    from jobq.run.worker.lease_command import LeaseCommand, inherited_by_command  # noqa: PLC0415 - as above
    from jobq.spec import resolve  # noqa: PLC0415 - as above

    named: set[int] = set()

    def on_busy(text: str, token: int) -> None:
        if token not in named:
            named.add(token)
            terminal.say(f"waiting: {text}")

    with LogRecords(terminal.say_record):
        async with spawner_for(settings) as spawner, resolve(spec, settings) as backend:
            await ready_for_lease(backend, name, says=False)
            store, clock = store_of(backend), clock_of(shares_machine=backend.capabilities.shares_machine)
            keep_clock(spawner, clock)
            singleton = LeaseCommand(
                lambda on_extended: named_lease(
                    store, settings, name, on_extended=on_extended, on_busy=on_busy, clock=clock, **wanted
                ),
                spawner,
                settings,
                clock,
            )
            try:
                ended = await singleton.run(argv, inherited_by_command())
            except LeaseHeld as error:
                terminal.complain(str(error))
                return conflict
    if ended.cause:
        terminal.complain(ended.cause)
    return conflict if ended.exit_code is None else ended.exit_code


@lease.command(
    name="list",
    cls=ExampleCommand,
    short_help="List the named leases of the queue.",
    examples=("jobq demo lease list", "jobq demo lease list --state active --state renewed --json"),
)
@click.option(
    "--state", "states", multiple=True,
    type=click.Choice(["active", "expired", "released", "confirmed", "renewed"]),
    help="Only these; may be repeated. renewed = active, and renewed at least once. Default: all.",
)  # fmt: skip
@json_option
@click.pass_context
def list_(ctx: click.Context, states: tuple[str, ...], as_json: bool) -> int:
    """List the named leases of the queue: name, state, token, holder, time left, renewals, cursor."""

    async def work(backend: "Backend") -> None:
        from jobq.lease.store import store_of  # noqa: PLC0415 - `jobq lease --help` needs none of it

        for record in await store_of(backend).list():
            if states and not states_of(record) & set(states):
                continue
            if as_json:
                terminal.put_json(_as_json(record))
            else:
                terminal.put(_line(record))

    return with_queue(ctx, work)


@lease.command(
    cls=ExampleCommand,
    short_help="Show one named lease.",
    examples=("jobq demo lease show nightly", "jobq demo lease show nightly --json"),
)
@click.argument("name")
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> int:
    """Show one named lease: its state, token, holder, times, and the whole cursor."""

    async def work(backend: "Backend") -> int:
        from jobq.lease.store import checked_name, store_of  # noqa: PLC0415 - `jobq lease --help` needs none of it

        record = await store_of(backend).read(checked_name(name))
        if record is None:
            return _missing(name, as_json=as_json)
        if as_json:
            terminal.put_json(_as_json(record))
            return 0
        for title, value in _as_json(record).items():
            terminal.put(f"{title + ':':<14}{'-' if value is None else terminal.visible(str(value))}")
        return 0

    return with_queue(ctx, work)


@lease.command(
    cls=ExampleCommand,
    short_help="End a lease by its token, or keep its holder from renewing it.",
    examples=("jobq demo lease release nightly --token 1", "jobq demo lease release nightly"),
)
@click.argument("name")
@click.option("--token", metavar="N", type=click.IntRange(min=1), help="Of the lease to give back, at once.")
@json_option
@click.pass_context
def release(ctx: click.Context, name: str, token: int | None, as_json: bool) -> int:
    """End a lease.

    With --token it is given back at once: that is for its holder, or who knows that it is gone. Without, its
    holder may not renew it any more: what it protects is killed within a quarter of its time, and the name is free when
    the rest has passed. A confirmed lease is given back at once.
    """

    async def work(backend: "Backend") -> int:
        from jobq.lease.store import checked_name, store_of  # noqa: PLC0415 - `jobq lease --help` needs none of it

        store = store_of(backend)
        if token is None:
            record = await store.revoke(checked_name(name))
        else:
            record = await store.read(checked_name(name))
            if record is not None:
                await store.release(name, token)
                record = await store.read(name)
        if record is None:
            return _missing(name, as_json=as_json)
        if as_json:
            terminal.put_json(_as_json(record))
        else:
            terminal.put(_line(record))
        return 0

    return with_queue(ctx, work)


def states_of(record: "LeaseRecord") -> set[str]:
    """Return all words that `--state` knows it by."""
    renewed = {"renewed"} if record.state == "active" and record.renewals else set()
    return {str(record.state)} | renewed


def _missing(name: str, *, as_json: bool) -> int:
    return terminal.not_found(f"nobody ever held a lease {name!r} here", as_json=as_json)


def _line(record: "LeaseRecord") -> str:
    left = record.remaining
    when = "" if left is None else f"{durations.show(round(abs(left), 1))} {'left' if left > 0 else 'ago'}"
    state = f"{record.state}, revoked" if record.is_revoked else str(record.state)
    renewals = "" if record.renewals is None else f"{record.renewals} renewals"
    cursor = "" if record.cursor is None else f"cursor {terminal.shortened(record.cursor, _SHOWN_CURSOR)}"
    parts = [record.name, state, f"token {record.token}", terminal.visible(record.holder), when, renewals, cursor]
    return "  ".join(part for part in parts if part)


def _as_json(record: "LeaseRecord") -> dict[str, Any]:
    from jobq.cli.display import format_task  # noqa: PLC0415 - `jobq lease --help` needs none of it

    return {
        "name": record.name,
        "state": str(record.state),
        "token": record.token,
        "holder": record.holder,
        "remaining_s": None if record.remaining is None else round(record.remaining, 3),
        "renewals": record.renewals,
        "acquired": format_task.moment(record.acquired),
        "revoked": record.is_revoked,
        "confirmed": record.confirmation,
        "cursor": record.cursor,
    }
