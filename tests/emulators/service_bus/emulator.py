"""The emulator as one object: both protocols on loopback, its clock's alarm, and what tests do to it."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from jobq.clock import Clock, SystemClock
from tests.emulators.service_bus import websocket
from tests.emulators.service_bus.access import Access, Policy, sign
from tests.emulators.service_bus.broker import Broker
from tests.emulators.service_bus.connection import AmqpConnection
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.faults import Faults, Gate
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.rest import application
from tests.emulators.service_bus.service import Service, until

HOST: Final = "127.0.0.1"
ROOT_POLICY: Final = "RootManageSharedAccessKey"
ROOT_KEY: Final = "emulator-key-of-no-value"
IDLE_DETACH: Final = timedelta(minutes=10)
_LONG: Final = 3600.0  # seconds between looks when nothing is due


class Emulator:
    """An Azure Service Bus of this process; an asynchronous context manager.

    Args:
        queues: to begin with.
        clock: the service's time; the SDK and its own clock know nothing of it.
        fidelity: how it behaves where the real service is contested.
        policies: shared access policies by name; None = one that may do all, under the usual name.
        idle_detach: after how long an unused AMQP link is detached; None = never, nor is its connection closed.
        amqp_port: 0 = any that is free.
        http_port: as above.
    """

    def __init__(
        self,
        queues: Sequence[Description] = (),
        *,
        clock: Clock | None = None,
        fidelity: Fidelity | None = None,
        policies: Mapping[str, Policy] | None = None,
        idle_detach: timedelta | None = IDLE_DETACH,
        amqp_port: int = 0,
        http_port: int = 0,
    ) -> None:
        self.clock = clock or SystemClock()
        self._changed = asyncio.Event()  # something new is due
        self.broker = Broker(self.clock, fidelity or Fidelity(), self._changed.set)
        self.faults = Faults()
        self.gate = Gate(self.clock, self.faults)
        self.access = Access(self.clock, policies or {ROOT_POLICY: Policy(ROOT_KEY)})
        self.amqp_port, self.http_port = amqp_port, http_port
        idle = None if idle_detach is None else idle_detach.total_seconds()
        self._service = Service(self.broker, self.gate, self.access, idle)
        self._connections: set[AmqpConnection] = set()
        self._stack = AsyncExitStack()
        for description in queues:
            self.broker.create(description)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()  # given no error, else the group would wrap what is raised inside

    async def _start(self, stack: AsyncExitStack) -> None:
        app = application(self._service)
        app.router.add_get(websocket.PATH, websocket.door(HOST, lambda: self.amqp_port))
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, HOST, self.http_port).start()
        self.http_port = runner.addresses[0][1]
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: AmqpConnection(self._service, self._connections), HOST, self.amqp_port
        )
        stack.callback(self.drop_connections)
        stack.callback(server.close)
        self.amqp_port = server.sockets[0].getsockname()[1]
        group = await stack.enter_async_context(asyncio.TaskGroup())  # last: it would wrap a port's being taken
        alarm = group.create_task(self._alarm(), name="the emulator's alarm")
        stack.callback(alarm.cancel)

    async def _alarm(self) -> None:
        """Let happen what time brings, when it brings it; messages that come free so reach those who wait."""
        while True:
            self._changed.clear()
            due = [self.broker.sweep(), *(connection.sweep() for connection in list(self._connections))]
            wait = min((when - self.clock.wall() for when in due if when is not None), default=_LONG)
            await until(self._changed, self.clock, self.clock.boottime() + wait)

    # How to reach it

    @property
    def connection_string(self) -> str:
        """What `ServiceBusClient.from_connection_string` takes, and jobq: it also says where REST is."""
        return self.connection_string_of()

    def connection_string_of(self, policy: str = ROOT_POLICY, *, http: bool = False) -> str:
        """Return a connection string.

        Args:
            policy: name of the shared access policy.
            http: for the admin API instead of AMQP. The SDK's admin client speaks TLS whatever the string says, so it
                needs a transport that writes `http://` for `https://`.
        """
        port, key = self.http_port if http else self.amqp_port, self.access.policies[policy].key
        return (
            f"Endpoint=sb://{HOST}:{port};SharedAccessKeyName={policy};SharedAccessKey={key};"
            f"RestEndpoint={self.rest_url};UseDevelopmentEmulator=true"
        )

    @property
    def rest_url(self) -> str:
        """Where REST is served; no slash at the end."""
        return f"http://{HOST}:{self.http_port}"

    def authorization(self, path: str = "", policy: str = ROOT_POLICY, *, seconds: float = 3600) -> str:
        """Return a shared access signature for the header `Authorization`.

        Args:
            path: of the queue; "" = the namespace.
            policy: name of the shared access policy.
            seconds: until it expires, by the service's clock.
        """
        expires = self.clock.wall() + seconds
        return sign(f"{self.rest_url}/{path}", policy, self.access.policies[policy].key, expires)

    # What tests do to it

    @property
    def connections(self) -> int:
        """How many AMQP connections are open."""
        return len(self._connections)

    def drop_connections(self) -> None:
        """Break all AMQP connections without a word."""
        for connection in list(self._connections):
            connection.drop()

    def detach_receivers(self) -> None:
        """Detach all AMQP receivers, as the service does to idle ones; connections stay."""
        for connection in list(self._connections):
            connection.detach_receivers()
