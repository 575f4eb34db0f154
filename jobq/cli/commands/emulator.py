"""`jobq emulator`: services of others, emulated on this machine, for a try and for tests."""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from jobq.cli.common import ExampleCommand, SuggestingGroup, duration, json_option, run_async
from jobq.cli.display import terminal
from jobq.cli.interrupts import heard
from jobq.errors import ConfigurationError

if TYPE_CHECKING:
    from jobq.testing.service_bus.emulator import Emulator

_HELP: Final = """Serve an Azure Service Bus on 127.0.0.1, in memory, until Ctrl-C or SIGTERM; print how to reach it.

AMQP for the unmodified azure-servicebus SDK, REST, and the admin API, on one state that ends with this command.
docs/testing-service-bus.md says what it does and where the real service may differ.

For jobq, put what it prints into JOBQ_CONNECTION_STRING: jobq sb://emulator/demo worker
"""
_EXAMPLES: Final = (
    "jobq emulator service-bus",
    "jobq emulator service-bus --queue jobs --queue other --lock-duration 30s",
    "jobq emulator service-bus --json",
)


@click.group(cls=SuggestingGroup, examples=("jobq emulator service-bus --queue jobs",))
def emulator() -> None:
    """Serve an emulated service on this machine."""


@emulator.command("service-bus", cls=ExampleCommand, help=_HELP, examples=_EXAMPLES)
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="A queue to begin with; may be repeated. Default: demo."
)
@click.option("--lock-duration", metavar="DURATION", callback=duration, help="How long these queues lock. Default: 1m.")
@click.option(
    "--max-delivery-count", metavar="N", type=click.IntRange(min=1), default=10,
    help="Deliveries after which a message becomes a dead letter. Default: 10.",
)  # fmt: skip
@click.option(
    "--dedup-window", metavar="DURATION", callback=duration,
    help="How long message ids are remembered. Default: no duplicate detection.",
)  # fmt: skip
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65535), default=0, help="Of AMQP. Default: one that is free."
)
@click.option(
    "--http-port", metavar="PORT", type=click.IntRange(0, 65535), default=0,
    help="Of REST and the admin API. Default: one that is free.",
)  # fmt: skip
@click.option(
    "--time-limit", metavar="DURATION", callback=duration, help="End by itself after so long. Default: no limit."
)
@json_option
def service_bus(
    queues: tuple[str, ...],
    lock_duration: timedelta | None,
    max_delivery_count: int,
    dedup_window: timedelta | None,
    port: int,
    http_port: int,
    time_limit: timedelta | None,
    as_json: bool,
) -> int:
    """Serve an Azure Service Bus; see _HELP."""
    from jobq.testing.service_bus.description import Description  # noqa: PLC0415 - `jobq --help` must not pay for it
    from jobq.testing.service_bus.emulator import Emulator  # noqa: PLC0415 - as above

    lock = lock_duration or timedelta(minutes=1)
    window = dedup_window or timedelta(0)
    names = dict.fromkeys(queues or ("demo",))
    made = [Description(name, lock.total_seconds(), max_delivery_count, window.total_seconds()) for name in names]
    with terminal.by_thread():
        return run_async(_serve(Emulator(made, amqp_port=port, http_port=http_port), time_limit, as_json=as_json))


async def _serve(served: "Emulator", time_limit: timedelta | None, *, as_json: bool) -> int:
    """Serve until a signal or the limit; both are a good end."""
    with heard() as end:
        try:
            async with served:
                _say(served, as_json=as_json)
                async with asyncio.timeout(None if time_limit is None else time_limit.total_seconds()):
                    await asyncio.Event().wait()
        except TimeoutError:
            return 0
        except OSError as error:
            raise ConfigurationError(f"the emulator cannot listen: {error.strerror or error}") from error
        except asyncio.CancelledError:
            if end.signal is None:
                raise
    return 0


def _say(served: "Emulator", *, as_json: bool) -> None:
    names = [queue.description.name for queue in served.broker.queues.values()]
    if as_json:
        terminal.put_json(
            {
                "connection_string": served.connection_string,
                "rest_url": served.rest_url,
                "admin_connection_string": served.connection_string_of(http=True),
                "queues": names,
            }
        )
    else:
        terminal.put(served.connection_string)
        terminal.say(f"REST and admin: {served.rest_url}; queues: {', '.join(names)}. Ctrl-C ends it.")
    terminal.flush()
