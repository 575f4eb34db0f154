"""Messages that are no tasks: L3 (they delay others by one receive at most) and S6 (their bytes are kept)."""

from jobq.errors import LockLost, MalformedTask
from jobq.settlement import Complete, MoveToDeadLetters, Release
from jobq.testing.cases import case
from jobq.testing.harness import DONE, Bench, raises

_BODIES = (
    b"",
    b"not json",
    b"\xff\xfe\x00",
    b"[]",
    b"{}",
    b'{"version":99,"id":"a","command":"true"}',
    b'{"version":2,"command":"true"}',
    b'{"version":2,"id":"a","id":"b","command":"true"}',
)


@case(injects=True)
async def malformed_body_is_an_ordinary_delivery(bench: Bench) -> None:
    """Its id is usable, its body is the bytes, its task raises MalformedTask each time, its fencing rises."""
    injected = await bench.inject(b"not json")
    delivery = await bench.take()
    assert delivery.id == injected
    assert delivery.body == b"not json"
    for _ in range(2):
        with raises(MalformedTask, "the task of a malformed body"):
            _ = delivery.task
    assert delivery.fencing == (0, 0, delivery.deliveries)
    await delivery.renew(bench.lease)
    await bench.expire()
    again = await bench.take()
    assert again.id == injected
    if bench.capabilities.counts_deliveries:
        assert again.deliveries == 2
        assert again.fencing > delivery.fencing
    with raises(LockLost, "complete after redelivery"):
        await delivery.settle(Complete(DONE))
    await again.settle(Release())
    assert (await bench.take()).body == b"not json"


@case(injects=True)
async def dead_letter_keeps_any_bytes(bench: Bench) -> None:
    """S6: whatever the bytes, the dead letter holds them unchanged under the message's id."""
    expected = {await bench.inject(body): body for body in _BODIES}
    for delivery in await bench.take_all(len(_BODIES)):
        await delivery.settle(MoveToDeadLetters("malformed", "by the suite"))
    assert {each.id: each.body for each in await bench.backend.dead_letters(100)} == expected
    assert {each.reason for each in await bench.backend.dead_letters(100)} == {"malformed"}
    await bench.counts(dead=len(_BODIES))


@case(injects=True)
async def others_are_not_affected(bench: Bench) -> None:
    """L3, S11: good tasks around bad messages are received, peeked, counted and completed as ever."""
    (before,) = await bench.pushed()
    bad = await bench.inject(b"{")
    (after,) = await bench.pushed()
    assert {each.id for each in await bench.backend.peek(10)} == {before.id, bad, after.id}
    await bench.counts(visible=3)
    found = {each.id: each for each in await bench.take_all(3)}
    assert found.keys() == {before.id, bad, after.id}
    await found[before.id].settle(Complete(DONE))
    await found[bad].settle(MoveToDeadLetters("malformed", ""))
    await found[after.id].settle(Complete(DONE))
    await bench.counts(dead=1)


@case(injects=True)
async def malformed_is_redriven_and_purged_as_it_is(bench: Bench) -> None:
    """A redrive puts the bytes back unchanged; a purge and a clear delete them like any other."""
    injected = await bench.inject(b"not json")
    await (await bench.take()).settle(MoveToDeadLetters("malformed", ""))
    assert await bench.backend.redrive([injected]) == [injected]
    again = await bench.take()
    assert (again.id, again.body) == (injected, b"not json")
    await again.settle(MoveToDeadLetters("malformed", ""))
    assert await bench.backend.purge_dead([injected]) == [injected]
    await bench.inject(b"another")
    assert await bench.backend.clear() == 1
    await bench.counts()
