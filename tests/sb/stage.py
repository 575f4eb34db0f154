"""A queue of one's own on the emulator behind the fault-injecting proxy, and the real command line on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from jobq.backend import Delivery
from jobq.clock import Clock, SystemClock
from jobq.task import Task
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, place_of
from jobq_azure.service_bus.options import Options
from tests import command_line
from tests.command_line import Ended
from tests.emulators.service_bus.description import DEAD_LETTERS, Description
from tests.emulators.service_bus.emulator import IDLE_DETACH, ROOT_KEY, Emulator
from tests.emulators.service_bus.faults import Operation, Request
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.queue import Queue
from tests.support.http_proxy import HttpProxy

QUEUE: Final = "jobs"
SPEC: Final = f"sb://emulator/{QUEUE}"
NOW: Final = timedelta(0)
# A lock of 5 s counts for 4 s here: short enough to watch, long enough for a busy machine.
LOCK_SECONDS: Final = 60.0  # on virtual time; requests, which take real time, have an eighth of it
_REAL_LOCK_SECONDS: Final = 5.0  # where its end is waited for
SHORT: Final = {"JOBQ_ALLOW_SHORT_LEASE": "1", "JOBQ_SCHEDULED_EVENTS": "off", "JOBQ_LOG_FORMAT": "json"}

# Every contested behaviour of the service, the other way than the emulator has it by default.
OTHER_WAY: Final = Fidelity(
    locks_survive_disconnect=False,
    expired_lock_settles=True,
    activation_renumbers=False,
    rest_missing_entity_status=404,
    rest_lost_lock_status=410,
    rest_too_large_status=413,
    rest_renew_returns_properties=True,
    rest_first_delivery_count=0,
    refuses_long_dead_letter_text=False,
)

ended = partial(command_line.ended, secret=ROOT_KEY)


@dataclass
class Stage:
    """One emulated namespace with one queue.

    Attributes:
        emulator: the service.
        proxy: before its REST.
        backend: entered, through the proxy.
        folder: HOME of command lines.
    """

    emulator: Emulator
    proxy: HttpProxy
    backend: ServiceBusBackend
    folder: Path
    stack: AsyncExitStack = field(repr=False)

    @property
    def spec(self) -> str:
        return SPEC

    @property
    def signed(self) -> str:
        """The connection string, through the proxy."""
        return through(self.emulator, self.proxy)

    @property
    def queue(self) -> Queue:
        return self.emulator.broker.queue(QUEUE)

    @property
    def dead(self) -> Queue:
        return self.emulator.broker.queue(f"{QUEUE}/{DEAD_LETTERS}")

    async def pushed(self, count: int = 1, **fields: Any) -> list[Task]:
        tasks = [Task.new(**({"command": "true"} | fields)) for _ in range(count)]
        await self.backend.push(tasks)
        return tasks

    async def take(self) -> Delivery:
        (delivery,) = await self.backend.receive(1, None, NOW)
        return delivery

    def requests(self, operation: Operation, status: int | None = None) -> list[Request]:
        return [
            each
            for each in self.emulator.gate.requests
            if each.operation is operation and status in (None, each.status)
        ]

    async def start(self, *words: str, spec: str = "", **more: str) -> asyncio.subprocess.Process:
        """Start the command line on this queue; ended with the stage."""
        signed = {"JOBQ_CONNECTION_STRING": self.signed}
        return await command_line.start(self.stack, self.folder, (spec or self.spec, *words), signed | SHORT | more)

    async def run(self, *arguments: str, spec: str = "", **more: str) -> Ended:
        """Run to the end; without a guardian, which is no matter of the service: its start would cost most of it."""
        return await ended(await self.start(*arguments, spec=spec, **{"JOBQ_GUARDIAN": "off"} | more))


def through(emulator: Emulator, proxy: HttpProxy) -> str:
    return emulator.connection_string.replace(emulator.rest_url, f"http://127.0.0.1:{proxy.port}")


@asynccontextmanager
async def staged(
    folder: Path,
    fidelity: Fidelity | None = None,
    options: Options | None = None,
    clock: Clock | None = None,
    **description: Any,
) -> AsyncIterator[Stage]:
    """Make a namespace with a queue, and all that reaches it; on this machine's time unless a clock is given.

    Args:
        folder: HOME of command lines.
        fidelity: of the emulator.
        options: of the backend.
        clock: of the emulator.
        description: of the queue, beside what is usual here.
    """
    lock = _REAL_LOCK_SECONDS if clock is None else LOCK_SECONDS
    described = Description(QUEUE, **{"lock_duration": lock, "max_delivery_count": 117} | description)
    async with AsyncExitStack() as stack:
        time = clock or SystemClock()
        idle = IDLE_DETACH if clock is None else None  # the SDK's time is real: it would not close its links before
        emulator = Emulator([described], fidelity=fidelity, clock=time, idle_detach=idle)
        await stack.enter_async_context(emulator)
        proxy = await stack.enter_async_context(HttpProxy(emulator.http_port))
        namespace = Namespace(place_of("emulator", QUEUE, through(emulator, proxy), ""))
        backend = ServiceBusBackend(namespace, options or Options(stats_seconds=0.0), now=time.boottime)
        yield Stage(emulator, proxy, await stack.enter_async_context(backend), folder, stack)
