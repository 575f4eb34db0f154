"""What the tests of the emulator share: clients of all three interfaces on one emulator."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import ClientResponse, ClientSession
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import ROOT_POLICY, Emulator
from tests.emulators.service_bus.message import Content

QUEUE: Final = "jobs"
SOON: Final = 5.0  # seconds in which what should come comes, on a busy machine too


class PlainHttp(AioHttpTransport):  # type: ignore[misc] # has no types
    """The SDK's admin client writes https whatever the connection string says (facts 1.3)."""

    async def send(self, request: Any, **more: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **more)


@dataclass
class Rest:
    """A client of the REST data plane."""

    session: ClientSession
    emulator: Emulator

    async def __call__(self, method: str, path: str, **more: Any) -> ClientResponse:
        url = path if path.startswith("http") else f"{self.emulator.rest_url}/{path}"
        headers = {"Authorization": self.emulator.authorization()} | more.pop("headers", {})
        answer = await self.session.request(method, url, headers=headers, **more)
        await answer.read()
        return answer

    async def send(self, body: str = "x", queue: str = QUEUE, **broker: Any) -> int:
        headers = {"BrokerProperties": json.dumps(broker)}
        return (await self("POST", f"{queue}/messages", data=body, headers=headers)).status

    async def lock(self, queue: str = QUEUE, wait: float = 0) -> ClientResponse:
        return await self("POST", f"{queue}/messages/head?timeout={wait}")


def broker_properties(answer: ClientResponse) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.headers["BrokerProperties"])
    return found


@asynccontextmanager
async def rest_of(emulator: Emulator) -> AsyncIterator[Rest]:
    async with ClientSession() as session:
        yield Rest(session, emulator)


def client_of(emulator: Emulator, policy: str = ROOT_POLICY, **more: Any) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        emulator.connection_string_of(policy), **{"retry_backoff_factor": 0.05} | more
    )


def admin_of(emulator: Emulator, policy: str = ROOT_POLICY) -> ServiceBusAdministrationClient:
    # Five seconds of retries by default would hide what is answered.
    return ServiceBusAdministrationClient.from_connection_string(
        emulator.connection_string_of(policy, http=True), transport=PlainHttp(), retry_total=0
    )


def sender_of(client: ServiceBusClient, queue: str = QUEUE) -> ServiceBusSender:
    # Without the SDK's keep-alive task, whose end a close awaits for up to a second; receivers have it always.
    return client.get_queue_sender(queue, keep_alive=0)


def receiver_of(client: ServiceBusClient, queue: str = QUEUE, **more: Any) -> ServiceBusReceiver:
    return client.get_queue_receiver(queue, max_wait_time=SOON, **more)


async def settle(receiver: ServiceBusReceiver, how: str, token: object, **told: Any) -> None:
    """Settle over `$management`, by the token alone; names of `told` with - for _."""
    private: Any = receiver
    await private._settle_message_via_mgmt_link(how, [token], {key.replace("_", "-"): it for key, it in told.items()})


def put(emulator: Emulator, *bodies: str, **content: Any) -> None:
    """Put messages into the queue without a sender, which costs the SDK a second."""
    emulator.broker.queue(QUEUE).send([Content(body.encode(), message_id=body, **content) for body in bodies])


def emulator_of(**description: Any) -> Emulator:
    return Emulator([Description(QUEUE, **description)])


async def eventually(condition: Callable[[], object], seconds: float = SOON) -> None:
    """Wait for what happens in another part of this loop."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
