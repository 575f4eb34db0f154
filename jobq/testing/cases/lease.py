"""Leases in time: expiry, renewal, fencing numbers (S3), counters (S7) and checkpoints (S9)."""

from datetime import timedelta

from jobq.backend import Delivery
from jobq.errors import LockLost
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, Verb, crashes, raises, task

_GRAIN = 1.0  # of the clock that some services order tasks of one id by, in seconds


@case()
async def expired_task_comes_back(bench: Bench) -> None:
    """S1, L6: a lease that runs out gives the task to the next, unchanged, with one more delivery."""
    await bench.pushed()
    first = await bench.take()
    await bench.nothing()
    await bench.expire()
    second = await bench.take()
    assert second.id == first.id
    assert second.body == first.body
    assert second.fencing > first.fencing
    await second.settle(Complete(DONE))
    await bench.expire()
    await bench.nothing()


@case("counts_deliveries")
async def expiry_counts_as_a_crash(bench: Bench) -> None:
    """S7: deliveries rise by one with each, so an end that nobody recorded shows as a crash."""
    await bench.pushed()
    for expected in (1, 2, 3):
        delivery = await bench.take()
        assert delivery.deliveries == expected
        assert crashes(delivery) == expected - 1
        await bench.expire()


async def _again(bench: Bench, delivery: Delivery, step: str) -> Delivery:
    match step:
        case "expire":
            await bench.expire()
        case "requeue":
            await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
        case "release":
            await delivery.settle(Release())
        case _:
            await delivery.settle(MoveToDeadLetters("failures", ""))
            assert await bench.backend.redrive([delivery.id]) == [delivery.id]
    return await bench.take()


@case()
async def fencing_rises_through_everything(bench: Bench) -> None:
    """S3: expiry, requeue, release and redrive each raise the fencing number; a redrive raises the epoch."""
    await bench.pushed()
    delivery = await bench.take()
    seen = [delivery.fencing]
    for step in ("expire", "requeue", "release", "redrive", "requeue", "expire"):
        delivery = await _again(bench, delivery, step)
        seen.append(delivery.fencing)
        if bench.capabilities.counts_deliveries:
            assert delivery.deliveries == len(seen), f"deliveries were reset by {step} (S3)"
    assert seen == sorted(set(seen)), f"fencing numbers did not strictly rise: {seen}"
    epochs = [number.epoch for number in seen]
    assert len(set(epochs[:4])) == len(set(epochs[4:])) == 1, "only a redrive raises the epoch"
    assert epochs[4] > epochs[3]
    # What goes back as a copy is of the next generation, also when it is given back: it may run beside its original.
    expected = [0, 0, 1, 1, 1, 2, 2] if bench.capabilities.atomic_requeue else [0, 0, 1, 2, 2, 3, 3]
    assert [number.generation for number in seen] == expected


@case("frees_ids", "clears_leased")
async def an_id_that_was_forgotten_goes_on(bench: Bench) -> None:
    """S3: pushed again after `clear` or `purge`, an id has higher tokens than the copy that may still run."""
    seen = []
    for how in ("clear", "purge", "clear", "redrive and purge", "again"):
        await bench.backend.push([task(id="again", command=f"echo {how}")])
        delivery = await bench.take()
        seen.append(delivery.fencing)
        if "purge" not in how:
            await bench.backend.clear()
        else:
            await delivery.settle(MoveToDeadLetters("failures", ""))
            if "redrive" in how:
                await bench.clock.advance(_GRAIN)
                await bench.backend.redrive(["again"])
                delivery = await bench.take()
                seen.append(delivery.fencing)
                await delivery.settle(MoveToDeadLetters("failures", ""))
            assert await bench.backend.purge_dead(["again"]) == ["again"]
        await bench.clock.advance(_GRAIN)
    assert seen == sorted(set(seen)), f"fencing numbers did not strictly rise: {seen}"


@case()
async def renewal_extends(bench: Bench) -> None:
    """S4: with renewals in time a lease lasts beyond its first length, and the settle is accepted."""
    await bench.pushed()
    delivery = await bench.take()
    for _ in range(4):
        await bench.clock.advance(bench.lease.total_seconds() / 2)
        await delivery.renew(bench.lease)
        await bench.nothing()
    await delivery.settle(Complete(DONE))
    await bench.expire()
    await bench.nothing()


@case()
async def renewal_counts_from_the_call(bench: Bench) -> None:
    """A renewal lasts its length from now: it does not add up, and it ends."""
    await bench.pushed()
    delivery = await bench.take()
    for _ in range(5):
        await delivery.renew(bench.lease)
    await bench.expire()
    assert (await bench.take()).fencing > delivery.fencing
    with raises(LockLost, "renew of a task that was handed on"):
        await delivery.renew(bench.lease)


@case()
async def renewal_touches_no_other_task(bench: Bench) -> None:
    """S11: renewing one task neither extends nor shortens another's lease."""
    await bench.pushed(2)
    kept, lapsed = await bench.take_all(2)
    await bench.clock.advance(bench.lease.total_seconds() / 2)
    await kept.renew(bench.lease)
    await bench.nothing()
    await bench.clock.advance(bench.lease.total_seconds() * 0.75)
    assert (await bench.take()).id == lapsed.id
    await bench.nothing()
    await kept.renew(bench.lease)


@case("strict_expiry")
async def expired_receipt_is_refused_before_redelivery(bench: Bench) -> None:
    """S4: after expiry every verb is refused, though nobody else has taken the task yet."""
    await bench.pushed()
    delivery = await bench.take()
    await bench.expire()
    before = await bench.seen()
    verbs: dict[str, Verb] = {
        "renew": lambda: delivery.renew(bench.lease),
        "checkpoint": lambda: delivery.checkpoint("late"),
        "complete": lambda: delivery.settle(Complete(DONE)),
        "requeue": lambda: delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW)),
        "release": lambda: delivery.settle(Release()),
        "dead_letter": lambda: delivery.settle(MoveToDeadLetters("failures", "")),
    }
    for verb, call in verbs.items():
        with raises(LockLost, f"{verb} after expiry"):
            await call()
        assert await bench.seen() == before, f"{verb} after expiry has changed something"
    assert (await bench.take()).checkpoint_value is None


@case("strict_expiry")
async def lease_ends_when_it_says(bench: Bench) -> None:
    """S3: neither late nor early: just before its end the lease holds, just after it does not."""
    await bench.pushed(2)
    early, late = await bench.take_all(2)
    await bench.clock.advance(bench.lease.total_seconds() * 0.75)
    await early.settle(Complete(DONE))
    await bench.clock.advance(bench.lease.total_seconds() * 0.5)
    with raises(LockLost, "complete after the end of the lease"):
        await late.settle(Complete(DONE))


@case("native_checkpoint")
async def checkpoint_reaches_the_next_attempt(bench: Bench) -> None:
    """S9: the last accepted value is found after expiry, requeue, release and redrive."""
    await bench.pushed()
    delivery = await bench.take()
    await delivery.checkpoint("first")
    await delivery.checkpoint("ünd/2")
    for step in ("expire", "requeue", "release", "redrive"):
        delivery = await _again(bench, delivery, step)
        assert delivery.checkpoint_value == "ünd/2", f"the checkpoint was lost by {step}"


@case("native_checkpoint")
async def stale_checkpoint_is_refused(bench: Bench) -> None:
    """S9: who lost the lease cannot overwrite what the next attempt saved."""
    await bench.pushed()
    stale = await bench.take()
    await stale.checkpoint("old")
    await bench.expire()
    holder = await bench.take()
    await holder.checkpoint("new")
    with raises(LockLost, "a stale checkpoint"):
        await stale.checkpoint("stale")
    await holder.settle(Requeue(holder.task.requeued(failures=1).counters, NOW))
    with raises(LockLost, "a checkpoint after the settle"):
        await holder.checkpoint("after the end")
    assert (await bench.take()).checkpoint_value == "new"


@case("native_checkpoint")
async def late_checkpoint_undoes_no_newer_one(bench: Bench) -> None:
    """S9: a request that was given up arrives after the next one was acknowledged; a repetition is answered."""
    await bench.pushed()
    delivery = await bench.take()
    await delivery.checkpoint("first", 1)
    await delivery.checkpoint("third", 3)
    with raises(LockLost, "a checkpoint that was sent before the newest"):
        await delivery.checkpoint("second", 2)
    await delivery.checkpoint("third", 3)
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, NOW))
    following = await bench.take()
    assert following.checkpoint_value == "third"
    await following.checkpoint("fourth", 1)  # each attempt counts from one
    await following.settle(Release())
    assert (await bench.take()).checkpoint_value == "fourth"


@case("native_checkpoint")
async def checkpoints_are_apart(bench: Bench) -> None:
    """S11: one task's checkpoint is not another's."""
    await bench.pushed(2)
    one, other = await bench.take_all(2)
    await one.checkpoint("mine")
    await one.settle(Release())
    await other.settle(Release())
    values = {each.id: each.checkpoint_value for each in await bench.take_all(2)}
    assert values == {one.id: "mine", other.id: None}


@case("max_lease")
async def no_lease_over_the_longest(bench: Bench) -> None:
    """What is granted never exceeds what the service declares."""
    longest = bench.capabilities.max_lease
    assert longest is not None
    await bench.pushed()
    (delivery,) = await bench.backend.receive(1, longest, bench.harness.patience)
    assert timedelta(0) < delivery.lease <= longest
