"""Thousands of dead letters: a few requests for hundreds of them, also where others stand before what is meant."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from jobq.errors import BackendUnavailable, MalformedTask
from jobq_azure.service_bus.rest_client import Outgoing
from tests.emulators.service_bus.faults import NO_FAULT, Drop, Fault, Operation
from tests.sb.stage import NOW, Stage, staged

pytestmark = pytest.mark.check

_MANY = 600


async def _buried(stage: Stage, count: int = _MANY) -> list[str]:
    """Have the service itself give up on tasks; from outside that takes a minute."""
    ids = [task.id for task in await stage.pushed(count)]
    while (message := stage.queue.receive()) is not None:
        assert message.lock is not None
        stage.queue.dead_letter(message.lock, "failed", "by a test")
    stage.emulator.gate.requests.clear()
    return ids


def _asked(stage: Stage) -> int:
    """Return how many requests there were; each message that is handed out stands in the log, too."""
    return sum(request.operation is not Operation.RECEIVE for request in stage.emulator.gate.requests)


async def test_all_are_put_back_by_hundreds(stage: Stage) -> None:
    ids = await _buried(stage)
    assert await stage.backend.redrive(ids) == ids
    assert (len(stage.queue.messages()), len(stage.dead.messages())) == (_MANY, 0)
    # Two requests and more for each letter before: locked one by one, renewed, sent, completed.
    assert _asked(stage) < 60
    back = await stage.backend.receive(5, None, NOW)
    assert all(delivery.fencing.epoch > 0 for delivery in back)


async def test_all_are_purged_by_hundreds(stage: Stage) -> None:
    ids = await _buried(stage)
    assert await stage.backend.purge_dead(ids) == ids
    assert stage.dead.messages() == []
    assert _asked(stage) < 20


async def test_the_last_is_reached_under_a_short_lock_and_the_others_are_let_go(stage: Stage) -> None:
    """One by one the first locks ran out on the way, and the answer was "no dead letter with the id"."""
    ids = await _buried(stage)
    assert await stage.backend.redrive(ids[-1:]) == ids[-1:]
    assert _asked(stage) < 25
    assert await stage.backend.purge_dead(ids[:1]) == ids[:1], "it is not locked any more"
    assert len(stage.dead.messages()) == _MANY - 2


async def test_letters_that_another_reader_holds_are_not_said_to_be_missing(stage: Stage) -> None:
    ids = await _buried(stage, 3)
    assert stage.dead.receive() is not None  # another reader's lock on the first
    with pytest.raises(BackendUnavailable, match=r"1 dead letters .* cannot be locked now.*; run it again") as busy:
        await stage.backend.redrive(ids)
    assert busy.value.done == ids[1:]
    assert [letter.id for letter in await stage.backend.dead_letters(10)] == ids[:1]


async def test_a_redrive_of_many_that_is_cut_off_goes_on_with_the_next(tmp_path: Path) -> None:
    async with staged(tmp_path, dedup_window=600.0, lock_duration=60.0) as stage:
        ids = await _buried(stage, 250)
        stage.emulator.faults.plan(NO_FAULT, Operation.SEND)
        stage.emulator.faults.plan(Fault(503), Operation.SEND)
        with pytest.raises(BackendUnavailable):
            await stage.backend.redrive(ids)
        assert 0 < len(stage.dead.messages()) < 250
        left = [letter.id for letter in await stage.backend.dead_letters(250)]
        assert await stage.backend.redrive(ids) == left
        assert len({message.content.message_id for message in stage.queue.messages()}) == 250
        assert stage.dead.messages() == []


async def test_one_lock_that_is_lost_takes_no_other_along(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of hundreds is all or none: what is left is tried by halves (S11)."""
    ids = await _buried(stage, 30)
    amqp = stage.backend._amqp()
    renew = amqp.renew_dead
    to_lose = [7]

    async def renew_later(tokens: Sequence[UUID]) -> None:
        for number in [to_lose.pop()] if to_lose else []:  # between lock and renewal a lock runs out
            lost = next(message for message in stage.dead.messages() if message.number == number)
            assert lost.lock is not None
            stage.dead.abandon(lost.lock)
        await renew(tokens)

    monkeypatch.setattr(amqp, "renew_dead", renew_later)
    assert await stage.backend.redrive(ids) == ids, "the lost one is locked anew"
    assert (len(stage.queue.messages()), stage.dead.messages()) == (30, [])


async def test_a_letter_that_has_outgrown_the_queue_stops_no_other(stage: Stage) -> None:
    """Another program's message at the limit has no room for what is told beside a copy (S11)."""
    await stage.backend._wire.send(Outgoing(body=b"x" * (256 * 1024 - 10), message_id="large"))
    ids = await _buried(stage, 5)
    with pytest.raises(MalformedTask, match="is larger than this queue takes") as refused:
        await stage.backend.redrive(["large", *ids])
    assert "dead letter large stays as it is" in refused.value.__notes__[0]
    assert refused.value.done == ids
    assert (len(stage.queue.messages()), len(stage.dead.messages())) == (5, 1)
    assert await stage.backend.purge_dead(["large"]) == ["large"]


async def test_retry_all_goes_on_past_what_stays_as_it_is(stage: Stage) -> None:
    """It ended with the first batch that held such a letter, and so did the next one."""
    await stage.backend._wire.send(Outgoing(body=b"x" * (256 * 1024 - 10), message_id="large"))
    await _buried(stage)
    ended = await stage.run("dead", "retry", "--all")
    assert (ended.code, ended.out) == (2, f"retried {_MANY} dead letters\n")
    assert "dead letter large stays as it is" in ended.err
    assert (len(stage.queue.messages()), len(stage.dead.messages())) == (_MANY, 1)


async def test_what_was_purged_before_an_answer_was_lost_is_told(stage: Stage) -> None:
    """The journal heard of none of them, and the command said that it had purged none."""
    ids = await _buried(stage, 450)
    stage.emulator.faults.plan(NO_FAULT, Operation.COMPLETE)
    stage.emulator.faults.plan(Fault(drop=Drop.BEFORE), Operation.COMPLETE)
    with pytest.raises(BackendUnavailable) as lost:
        await stage.backend.purge_dead(ids)
    assert len(lost.value.done) == 450 - len(stage.dead.messages()) > 0
