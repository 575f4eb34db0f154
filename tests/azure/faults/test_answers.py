"""What an answer means, or none, where Azurite and the proxy cannot show it."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import NoReturn

import pytest
from azure.core.exceptions import ClientAuthenticationError

from jobq.errors import (
    AccessDenied,
    AnswerLost,
    BackendUnavailable,
    JobqError,
    LockLost,
    PushUnknown,
    SettlementUnknown,
)
from jobq.settlement import Complete
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.common.errors import answered
from jobq_azure.storage import account as connection
from jobq_azure.storage import push as pushing
from jobq_azure.storage.account import Account
from jobq_azure.storage.backend import StorageQueueBackend
from jobq_azure.storage.queue_client import StorageQueueClient, whole_seconds
from tests.azure.emulator import ACCOUNT, connection_string
from tests.azure.stage import LEASE, NOW, SHORT, Stage
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check


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

    wire = StorageQueueClient(object(), object, "queue", "account/queue")  # type: ignore[arg-type] # no request is made
    with pytest.raises(AccessDenied, match="az login"):
        await wire.ask(refused())
    assert await wire.ask(served()) == "yes"
    with pytest.raises(BackendUnavailable, match="no token") as caught:
        await wire.ask(refused())
    assert "canary" not in str(caught.value)
    with pytest.raises(AccessDenied):
        await answered(refused(), "account/queue")


@pytest.mark.parametrize("strike", [Strike.BARE, Strike.PAGE, Strike.REDIRECT])
async def test_only_the_service_says_that_something_is_done(stage: Stage, strike: Strike) -> None:
    # P1, S5: a proxy's 204 must extend no lease, and its 200 end no task; nor is a request sent to where a 307 points.
    await stage.pushed()
    delivery = await stage.take()
    stage.proxy.strike(strike, "PUT")
    with pytest.raises((SettlementUnknown, JobqError)) as renewed:
        await delivery.renew(LEASE)
    assert not isinstance(renewed.value, LockLost)
    stage.proxy.strike(strike, "DELETE")
    with pytest.raises((SettlementUnknown, JobqError)) as completed:
        await delivery.settle(Complete(DONE))
    assert not isinstance(completed.value, LockLost)
    stage.proxy.strike(strike, "GET", "/messages")
    with pytest.raises(JobqError):
        await stage.backend.receive(1, LEASE, NOW)
    stage.proxy.strike(strike, "POST")
    with pytest.raises(JobqError):
        await stage.backend.push([Task.new(command="true")])
    assert not stage.proxy.seen(path="elsewhere")
    await delivery.settle(Complete(DONE))
    assert await stage.total() == 0


async def test_a_page_in_the_middle_ends_no_worker(stage: Stage) -> None:
    await stage.pushed(20, command="echo $JOBQ_TASK_ID >> done")
    stage.proxy.strike(Strike.PAGE, "GET", "/messages", count=2, matches=lambda _: len(stage.proxy.seen("DELETE")) > 3)
    result = await stage.run("worker", "-n", "2", "--idle-timeout", "3s", **SHORT)
    assert result.code == 0, result.err
    assert "bug" not in result.err
    assert len((stage.folder / "done").read_text().split()) == 20


async def test_a_push_that_is_given_up_names_what_may_be_there(stage: Stage) -> None:
    tasks = [Task.new(command="true") for _ in range(100)]
    stage.proxy.strike(Strike.HANG, "POST", matches=lambda request: tasks[40].id.encode() in request.body)
    push = asyncio.ensure_future(stage.backend.push(tasks))
    await stage.proxy.until(lambda: any(each.strike for each in stage.proxy.requests))
    push.cancel()
    with pytest.raises(PushUnknown) as caught:
        await push
    assert list(caught.value.ids) == [tasks[40].id]
    assert await stage.total() == 0, "what was added was not taken back"


async def test_a_push_that_is_given_up_while_it_takes_back_names_what_may_be_there(stage: Stage) -> None:
    """S8: one put was refused, and the others were being taken back: a time-out told nothing of them."""
    stage.proxy.strike(Strike.DENY, "POST")
    stage.proxy.strike(Strike.HANG, "DELETE", count=math.inf)
    tasks = [Task.new(command="true") for _ in range(8)]
    pushing = asyncio.create_task(stage.backend.push(tasks))
    await stage.proxy.until(lambda: stage.proxy.seen("DELETE"))
    pushing.cancel()
    with pytest.raises(PushUnknown) as unknown:
        await pushing
    assert len(unknown.value.ids) == await stage.total()


async def test_a_push_that_is_given_up_and_wholly_taken_back_is_as_never_begun(stage: Stage) -> None:
    tasks = [Task.new(command="true") for _ in range(200)]
    push = asyncio.ensure_future(stage.backend.push(tasks))
    await stage.proxy.until(lambda: len(stage.proxy.seen("POST")) > 20)
    push.cancel()
    with pytest.raises(asyncio.CancelledError):
        await push
    assert await stage.total() == 0


async def test_a_service_that_falls_silent_holds_up_no_push(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is taken back for ever: what is there counts as doubtful, and is told in seconds.
    monkeypatch.setattr(connection, "_ANSWER_SECONDS", 3.0)
    monkeypatch.setattr(pushing, "_TAKE_BACK_SECONDS", 1.0)
    tasks = [Task.new(command="true") for _ in range(150)]
    stage.proxy.strike(Strike.HANG, count=math.inf, matches=lambda _: len(stage.proxy.requests) > 100)
    account = Account(ACCOUNT, stage.signed, "")
    async with StorageQueueBackend(account, stage.queue, timedelta(seconds=1)) as backend, asyncio.timeout(20):
        with pytest.raises(PushUnknown) as caught:
            await backend.push(tasks)
    await stage.proxy.heal()
    queued = {peeked.id for peeked in await stage.behind.peek(32)}
    assert queued <= set(caught.value.ids)
    assert len(caught.value.ids) >= 90


async def test_throttled_is_busy(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # It took no effect: nothing is in doubt.
    monkeypatch.setattr(pushing, "PUSH_SECONDS", 0.5)
    stage.proxy.strike(Strike.THROTTLE, "POST", count=math.inf)
    with pytest.raises(BackendUnavailable, match="busy"):
        await stage.backend.push([Task.new(command="true")])
    assert await stage.total() == 0


async def test_a_failure_of_the_service_says_nothing_of_what_it_did(stage: Stage) -> None:
    # S5, S8: an OperationTimedOut may have been done all the same.
    await stage.pushed()
    delivery = await stage.take()
    stage.proxy.strike(Strike.TIME_OUT, count=2, matches=lambda request: request.method in {"POST", "DELETE"})
    with pytest.raises(SettlementUnknown):
        await delivery.settle(Complete(DONE))
    task = Task.new(command="true")
    with pytest.raises(PushUnknown) as caught:
        await stage.backend.push([task])
    assert caught.value.ids == (task.id,)


async def test_not_found_by_a_gateway_is_no_queue_that_is_missing(stage: Stage) -> None:
    stage.proxy.strike(Strike.MISSING, "GET")
    with pytest.raises(BackendUnavailable, match="not the service's"):
        await stage.backend.stats()


@pytest.mark.parametrize("strike", [Strike.DENY, Strike.MISSING])
async def test_one_refusal_in_mid_run_ends_no_worker(stage: Stage, strike: Strike) -> None:
    # L4: a firewall rule that spreads, a key that is rotated, a gateway that starts.
    await stage.pushed(6, command="echo $JOBQ_TASK_ID >> done")
    seen = stage.proxy.seen
    stage.proxy.strike(strike, "GET", "/messages", count=2, matches=lambda _: len(seen("DELETE")) > 1)
    result = await stage.run("worker", **SHORT)
    assert result.code == 0, result.err
    assert len((stage.folder / "done").read_text().split()) == 6


async def test_one_failure_of_the_service_slows_no_worker_for_long(stage: Stage) -> None:
    await stage.pushed(40)
    stage.proxy.strike(Strike.TIME_OUT, "GET")
    for asked, found in ((3, None), (3, 1), (3, 1), (3, 1), (32, 32)):
        if found is None:
            with pytest.raises(AnswerLost, match="500 OperationTimedOut"):  # so a worker stays: it may have leased some
                await stage.backend.receive(asked, LEASE, NOW)
        else:
            assert len(await stage.backend.receive(asked, LEASE, NOW)) == found


def test_a_lease_is_asked_for_in_whole_seconds_and_never_shorter() -> None:
    # 1.3 rule 2 counts the lease as sent: a shorter one would be held beyond its end.
    lengths = {0.2: 1, 1.0: 1, 1.001: 2, 300.0: 300, 300.5: 301, 30 * 86400.0: 7 * 86400}
    assert {length: whole_seconds(timedelta(seconds=length)) for length in lengths} == lengths
