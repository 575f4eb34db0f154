"""What an answer means, or none, where Azurite and the proxy cannot show it."""

import contextlib
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import NoReturn

import pytest
from azure.core.exceptions import ClientAuthenticationError

from jobq.errors import AccessDenied, BackendUnavailable, PushUnknown
from jobq.task import Task
from jobq.testing.http_proxy import Strike
from jobq_azure import connection
from jobq_azure.answers import answered
from jobq_azure.backend import StorageQueueBackend
from jobq_azure.connection import Account
from jobq_azure.wire import Wire
from tests.azure.emulator import ACCOUNT, connection_string
from tests.azure.stage import Stage


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port that answers no attempt to connect: its queue of those who wait is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.2)
            try:
                waiting.connect(listening.getsockname())
            except TimeoutError:
                break
        yield listening.getsockname()[1]


async def test_a_push_that_never_connected_is_not_in_doubt(deaf_port: int) -> None:
    account = Account(ACCOUNT, connection_string(deaf_port), "")
    async with StorageQueueBackend(account, "queue", timedelta(seconds=1)) as backend:
        with pytest.raises(BackendUnavailable, match="cannot connect"):
            await backend.push([Task.new(command="true")])


async def test_a_push_that_is_never_answered_is_in_doubt(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_ANSWER_SECONDS", 0.5)
    stage.proxy.strike(Strike.HANG, "POST")
    task = Task.new(command="true")
    signed = connection_string(stage.proxy.port)
    async with StorageQueueBackend(Account(ACCOUNT, signed, ""), stage.queue, timedelta(seconds=1)) as backend:
        with pytest.raises(PushUnknown) as caught:
            await backend.push([task])
    assert caught.value.ids == (task.id,)


async def test_a_credential_that_fails_later_ends_no_worker() -> None:
    # L4: at the first request it is a matter of configuration, later the identity service stumbles.
    async def refused() -> NoReturn:
        raise ClientAuthenticationError("no token; sig=canary")

    async def served() -> str:
        return "yes"

    wire = Wire(object(), "account/queue")  # type: ignore[arg-type] # no request is made
    with pytest.raises(AccessDenied, match="az login"):
        await wire.ask(refused())
    assert await wire.ask(served()) == "yes"
    with pytest.raises(BackendUnavailable, match="no token") as caught:
        await wire.ask(refused())
    assert "canary" not in str(caught.value)
    with pytest.raises(AccessDenied):
        await answered(refused(), "account/queue")
