"""Locks over REST: what ends one, what does not, and that no task outlives its own (P1, S4, S5)."""

import asyncio
import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken

from jobq.clock import Moment
from jobq.errors import AccessDenied, BackendUnavailable, ConfigurationError, LockLost, SettlementUnknown
from jobq.lease.keeper import LeaseKeeper
from jobq.lease.timing import timing_for
from jobq.run.attempt.attempt_journal import AttemptJournal
from jobq.run.attempt.retry import crashes_before
from jobq.run.attempt.settle import Settled, settle
from jobq.settings import Settings
from jobq.settlement import Complete
from jobq.task import Task
from jobq.testing.clock import VirtualClock
from jobq.testing.harness import DONE
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, QueueAddress
from jobq_azure.service_bus.options import Options
from tests.azure.stage import eventually
from tests.emulators.service_bus.access import ALL_RIGHTS, Claim
from tests.emulators.service_bus.faults import Drop, Fault, Operation
from tests.emulators.service_bus.message import Content, State
from tests.sb.stage import LOCK_SECONDS, NOW, QUEUE, Stage, ended, staged
from tests.support.http_proxy import Strike
from tests.ticking import TICKS, is_alive, last_tick

pytestmark = pytest.mark.check

LEASE = timedelta(seconds=4)


async def _renewed(stage: Stage, times: int = 1) -> None:
    await eventually(lambda: len(stage.requests(Operation.RENEW, 200)) >= times)


@pytest.mark.parametrize("status", [404, 409, 410])
async def test_a_refused_lock_is_lost(stage: Stage, status: int) -> None:
    await stage.pushed()
    delivery = await stage.take()
    for operation in (Operation.RENEW, Operation.COMPLETE):
        stage.emulator.faults.plan(Fault(status), operation)
    with pytest.raises(LockLost):
        await delivery.renew(LEASE)
    with pytest.raises(LockLost):
        await delivery.settle(Complete(DONE))
    stage.emulator.faults.clear()
    await delivery.settle(Complete(DONE))


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_a_service_that_stumbles_has_extended_and_ended_nothing(stage: Stage, status: int) -> None:
    await stage.pushed()
    delivery = await stage.take()
    for operation in (Operation.RENEW, Operation.COMPLETE):
        stage.emulator.faults.plan(Fault(status), operation)
        with pytest.raises((BackendUnavailable, SettlementUnknown)):
            await (delivery.renew(LEASE) if operation is Operation.RENEW else delivery.settle(Complete(DONE)))
    assert stage.queue.count(State.LOCKED) == 1
    await delivery.settle(Complete(DONE))


async def test_s5_a_completion_that_lands_after_it_was_asked_for_is_no_lost_lock(stage: Stage) -> None:
    """The lock stood when it was asked for, so the completion is sent again: then the first has landed, late."""
    await stage.pushed()
    delivery = await stage.take()
    stage.emulator.faults.plan(Fault(drop=Drop.BEFORE), Operation.COMPLETE)
    with pytest.raises(BackendUnavailable, match="the lock still stands"):
        await delivery.settle(Complete(DONE))
    (held,) = stage.queue.messages()
    assert held.lock is not None
    stage.queue.complete(held.lock)
    with pytest.raises(SettlementUnknown, match="was not answered"):
        await delivery.settle(Complete(DONE))


async def test_s5_what_may_land_late_is_told_as_unknown(tmp_path: Path) -> None:
    """The lock stood when it was asked for, and there is no time left to send the completion again."""
    clock, patience = VirtualClock(), VirtualClock()
    async with staged(tmp_path, clock=clock) as stage:
        await stage.pushed()
        delivery = await stage.take()
        timing = timing_for(delivery.lease, Settings())
        keeper = LeaseKeeper(AttemptJournal(delivery), since=Moment.of(clock), timing=timing, clock=clock)
        stage.emulator.faults.plan(Fault(drop=Drop.BEFORE), Operation.COMPLETE, count=math.inf)
        able = stage.backend.capabilities
        settling = asyncio.create_task(settle(delivery, keeper, Complete(), None, capabilities=able, clock=patience))
        await eventually(lambda: bool(stage.requests(Operation.COMPLETE)))
        await patience.advance(LOCK_SECONDS)
        assert await settling is Settled.UNKNOWN
        assert stage.requests(Operation.RENEW, 200), "the lock stood"


async def test_a_completion_whose_answer_was_lost_is_in_doubt(stage: Stage) -> None:
    # S5: it has landed, and a repetition would read as a lost lock.
    await stage.pushed()
    delivery = await stage.take()
    stage.emulator.faults.plan(Fault(drop=Drop.AFTER), Operation.COMPLETE)
    with pytest.raises(SettlementUnknown):
        await delivery.settle(Complete(DONE))
    assert len(stage.requests(Operation.COMPLETE)) == 1, "it was sent again by a library"
    assert stage.queue.messages() == []


async def test_a_completion_that_never_arrived_is_known_by_its_lock(stage: Stage) -> None:
    await stage.pushed()
    delivery = await stage.take()
    stage.emulator.faults.plan(Fault(drop=Drop.BEFORE), Operation.COMPLETE)
    with pytest.raises(BackendUnavailable, match="the lock still stands"):
        await delivery.settle(Complete(DONE))
    await delivery.settle(Complete(DONE))
    assert stage.queue.messages() == []


@pytest.mark.parametrize("strike", [Strike.BARE, Strike.PAGE, Strike.REDIRECT])
async def test_who_stands_between_extends_and_ends_nothing(stage: Stage, strike: Strike) -> None:
    # P1, S5: a proxy's 204 or 200 extends no lock and completes no task.
    await stage.pushed()
    delivery = await stage.take()
    stage.proxy.strike(strike, "POST")
    with pytest.raises(SettlementUnknown):
        await delivery.renew(LEASE)
    stage.proxy.strike(strike, "DELETE")
    with pytest.raises(BackendUnavailable, match="the lock still stands"):
        await delivery.settle(Complete(DONE))
    if strike is not Strike.BARE:  # which is what the service says of an empty queue, too
        stage.proxy.strike(strike, "POST")
        with pytest.raises(BackendUnavailable):
            await stage.backend.receive(1, None, NOW)
    await delivery.settle(Complete(DONE))
    assert stage.queue.messages() == []


async def test_a_property_with_the_name_of_a_header_moves_no_lock(stage: Stage) -> None:
    # Over REST, properties of a message are headers of the answer.
    await stage.pushed()
    other = await stage.take()
    (locked,) = stage.queue.messages()
    forged = {"location": f"http://elsewhere/{QUEUE}/messages/{locked.number}/{locked.lock}", "Date": "yesterday"}
    stage.queue.send([Content(Task.new(command="true").encode(), message_id="forged", properties=forged)])
    delivery = await stage.take()
    await delivery.settle(Complete(DONE))
    assert [each.number for each in stage.queue.messages()] == [locked.number]
    await other.settle(Complete(DONE))


async def test_the_length_of_a_lock_is_the_services(tmp_path: Path) -> None:
    # rules.md 1.3 rule 6: two times of one answer; settings only shorten it.
    async with staged(tmp_path, options=Options(shorter_lock=timedelta(seconds=30)), lock_duration=60.0) as stage:
        await stage.pushed(3)
        assert (await stage.take()).lease == timedelta(seconds=30)
        (shorter,) = await stage.backend.receive(1, timedelta(seconds=20), NOW)
        assert shorter.lease == timedelta(seconds=20)
    async with staged(tmp_path, options=Options(shorter_lock=timedelta(minutes=4)), lock_duration=60.0) as stage:
        await stage.pushed()
        assert timedelta(seconds=57) < (await stage.take()).lease <= timedelta(seconds=59)


async def test_a_checkpoint_is_refused_in_plain_words(stage: Stage) -> None:
    await stage.pushed()
    delivery = await stage.take()
    assert not stage.backend.capabilities.native_checkpoint
    with pytest.raises(ConfigurationError, match="no place for a task's checkpoint"):
        await delivery.checkpoint("step 7")
    await delivery.settle(Complete(DONE))


async def test_a_renewal_that_answers_404_kills_the_tree(stage: Stage) -> None:
    # The lock is gone in the middle of the task: its tree dies, and the message is left to others.
    await stage.backend.push([Task.new(command=TICKS)])
    worker = await stage.start("worker")
    await _renewed(stage)
    await eventually((stage.folder / "leader").exists)
    stage.emulator.faults.plan(Fault(404), Operation.RENEW)
    refused = time.clock_gettime(time.CLOCK_BOOTTIME)
    leader = stage.folder / "leader"
    await eventually(lambda: not is_alive(leader))
    assert len(stage.requests(Operation.COMPLETE)) == 0
    assert last_tick(stage.folder) < refused + LOCK_SECONDS
    result = await ended(worker)
    assert result.code == 0, result.err
    assert (stage.folder / "starts").read_text() == "start\nstart\n"
    assert "task.lease_lost" in result.out + result.err
    assert stage.queue.messages() == []


async def test_a_black_hole_kills_the_task_before_its_lock_ends(stage: Stage) -> None:
    await stage.backend.push([Task.new(command=TICKS)])
    worker = await stage.start("worker")
    leader = stage.folder / "leader"
    await eventually(leader.exists)
    await _renewed(stage)
    stage.proxy.strike(Strike.HANG, count=math.inf)
    await eventually(lambda: not is_alive(leader))
    (message,) = stage.queue.messages()
    assert message.state is State.LOCKED, "the task outlived its lock"
    left = message.locked_until - time.time()
    assert left > 0.5, f"killed {left:.2f} s before the end of the lock"
    assert worker.returncode is None, "a black hole is no reason to end a worker (L4)"
    assert (stage.folder / "starts").read_text() == "start\n"


async def test_a_receive_that_is_cancelled_costs_no_delivery(stage: Stage) -> None:
    # The poll cannot be called back; what it brings goes to the next receive, renewed, or back to the queue.
    waiting = asyncio.create_task(stage.backend.receive(1, None, timedelta(seconds=20)))
    await eventually(lambda: bool(stage.requests(Operation.RECEIVE)))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await stage.pushed()
    await eventually(lambda: stage.queue.count(State.LOCKED) == 1)
    (delivery,) = await stage.backend.receive(1, None, timedelta(seconds=5))
    assert delivery.deliveries == 1
    assert len(stage.requests(Operation.RENEW, 200)) == 1
    await delivery.settle(Complete(DONE))


async def test_s6_what_an_abandoned_poll_brought_is_given_back_whole(stage: Stage) -> None:
    """The copy is sent, and the completion refused: both would run."""
    waiting = asyncio.create_task(stage.backend.receive(1, None, timedelta(seconds=20)))
    await eventually(lambda: bool(stage.requests(Operation.RECEIVE)))
    waiting.cancel()
    await asyncio.wait({waiting})
    stage.emulator.faults.plan(Fault(503), Operation.COMPLETE, count=2)
    await stage.pushed()
    await eventually(lambda: len(stage.requests(Operation.COMPLETE)) == 3)
    await eventually(lambda: len(stage.queue.messages()) == 1)
    assert len(stage.requests(Operation.SEND, 201)) == 2, "the push, and one copy"


async def test_s7_a_receive_that_is_cancelled_in_its_second_look_gives_back_what_the_first_brought(
    stage: Stage,
) -> None:
    await stage.pushed()
    looks = len(stage.requests(Operation.RECEIVE))
    stage.emulator.faults.plan(Fault(), Operation.RECEIVE)  # the first is as always
    stage.emulator.faults.plan(Fault(delay=30), Operation.RECEIVE, count=math.inf)
    receiving = asyncio.create_task(stage.backend.receive(3, None, NOW))
    await eventually(lambda: len(stage.requests(Operation.RECEIVE)) >= looks + 3)
    assert stage.queue.count(State.LOCKED) == 1
    receiving.cancel()
    await eventually(lambda: stage.queue.count(State.LOCKED) == 0)
    stage.emulator.faults.clear()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    delivery = await stage.take()
    assert crashes_before(delivery.task, delivery.deliveries) == 0


async def test_what_nobody_takes_over_is_given_back_before_its_lock_ends(tmp_path: Path) -> None:
    # Two polls were given up, and the worker has room for one task: the other one is for others, at no cost.
    async with staged(tmp_path, lock_duration=60.0) as stage:
        for polls in (1, 2):
            waiting = asyncio.create_task(stage.backend.receive(1, None, timedelta(seconds=20)))
            await eventually(lambda polls=polls: len(stage.requests(Operation.RECEIVE)) >= polls)  # type: ignore[misc]
            waiting.cancel()
            await asyncio.wait({waiting})
        await stage.pushed(2)
        await eventually(lambda: stage.queue.count(State.LOCKED) == 2)
        taken = await stage.take()
        await eventually(lambda: stage.queue.count(State.ACTIVE) == 1)
        other = await stage.take()
        assert {taken.id, other.id} == {Task.decode(each.content.body).id for each in stage.queue.messages()}
        assert crashes_before(other.task, other.deliveries) == 0


class _Credential:
    """Stands in for Entra: tokens that the emulator knows, each for some seconds."""

    def __init__(self, stage: Stage, seconds: float) -> None:
        self._stage = stage
        self._seconds = seconds
        self.given = 0

    async def get_token(self, *scopes: str, **_more: Any) -> AccessToken:
        assert scopes == ("https://servicebus.azure.net/.default",)
        self.given += 1
        ends = time.time() + self._seconds
        self._stage.emulator.access.bearers[f"token-{self.given}"] = Claim("", ALL_RIGHTS, ends)
        return AccessToken(f"token-{self.given}", int(ends))

    async def close(self) -> None:
        return


def _backend_by_identity(stage: Stage, credential: _Credential) -> ServiceBusBackend:
    place = QueueAddress(namespace="emulator", queue=QUEUE, rest_url=stage.emulator.rest_url, host="127.0.0.1")
    return ServiceBusBackend(Namespace(place, credential=credential), Options())


async def test_tokens_are_made_anew_before_they_end(stage: Stage) -> None:
    await stage.pushed()
    credential = _Credential(stage, seconds=2)
    async with _backend_by_identity(stage, credential) as backend:
        (delivery,) = await backend.receive(1, None, NOW)
        for _ in range(7):  # longer than a token serves
            await asyncio.sleep(0.4)
            await delivery.renew(LEASE)
        await delivery.settle(Complete(DONE))
    assert credential.given >= 3
    assert not [each for each in stage.emulator.gate.requests if each.status == 401]


async def test_a_refused_token_is_replaced_once(stage: Stage) -> None:
    await stage.pushed()
    credential = _Credential(stage, seconds=3600)
    async with _backend_by_identity(stage, credential) as backend:
        (delivery,) = await backend.receive(1, None, NOW)
        stage.emulator.access.bearers.clear()  # revoked while the task runs
        await delivery.renew(LEASE)
        assert credential.given == 2
        await delivery.settle(Complete(DONE))
        stage.emulator.faults.plan(Fault(401), Operation.RECEIVE, count=2)
        with pytest.raises(AccessDenied, match="Receiver"):
            await backend.receive(1, None, NOW)
        assert credential.given == 3
    assert len(stage.requests(Operation.RENEW, 401)) == 1


async def test_a_token_that_ends_during_a_task_costs_no_lock(stage: Stage) -> None:
    # Over SAS, with the worker itself: its signature is refused once in the middle.
    await stage.backend.push([Task.new(command="echo start >> starts; until [ -e go ]; do sleep 0.05; done")])
    worker = await stage.start("worker")
    await _renewed(stage, 2)
    stage.emulator.faults.plan(Fault(401), Operation.RENEW)
    await eventually(lambda: bool(stage.requests(Operation.RENEW, 401)))
    await _renewed(stage, len(stage.requests(Operation.RENEW, 200)) + 2)
    (stage.folder / "go").touch()
    result = await ended(worker)
    assert result.code == 0, result.err
    assert (stage.folder / "starts").read_text() == "start\n"
    assert stage.queue.messages() == []
