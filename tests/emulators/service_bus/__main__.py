"""Serves the emulator until Ctrl-C or SIGTERM: `python -m tests.emulators.service_bus --queue jobs`."""

import argparse
import asyncio
import json
import signal
import sys

from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator


def main(words: list[str]) -> int:
    """Serve, and print how to reach it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulators.service_bus", description=__doc__)
    parser.add_argument("--queue", action="append", metavar="NAME", help="a queue to begin with; may be repeated")
    parser.add_argument("--lock-duration", type=float, default=60.0, metavar="SECONDS", help="of these queues")
    parser.add_argument("--max-delivery-count", type=int, default=10, metavar="N", help="of these queues")
    parser.add_argument("--dedup-window", type=float, default=0.0, metavar="SECONDS", help="of these queues")
    parser.add_argument("--port", type=int, default=0, help="of AMQP (default: any that is free)")
    parser.add_argument("--http-port", type=int, default=0, help="of REST and the admin API")
    parser.add_argument("--json", action="store_true", help="print one object instead of the connection string")
    given = parser.parse_args(words)
    queues = [
        Description(name, given.lock_duration, given.max_delivery_count, given.dedup_window)
        for name in given.queue or ["demo"]
    ]
    asyncio.run(_serve(queues, given))
    return 0


async def _serve(queues: list[Description], given: argparse.Namespace) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with Emulator(queues, amqp_port=given.port, http_port=given.http_port) as emulator:
        told = {
            "connection_string": emulator.connection_string,
            "rest_url": emulator.rest_url,
            "admin_connection_string": emulator.connection_string_of(http=True),
            "queues": [queue.name for queue in queues],
        }
        print(json.dumps(told) if given.json else emulator.connection_string, flush=True)
        await ended.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
