"""S4: who lost the lease changes nothing, by whichever verb, in whichever way it was lost."""

from datetime import timedelta

from jobq.backend import Delivery
from jobq.errors import LockLost
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import TaskResult
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, Verb, raises


def _verbs(delivery: Delivery, bench: Bench) -> dict[str, Verb]:
    """Every verb, with arguments that no other call of the suite uses: none of these repeats a settle (S5)."""
    return {
        "renew": lambda: delivery.renew(bench.lease),
        "complete": lambda: delivery.settle(Complete(TaskResult(exit_code=0, output_tail="stale"))),
        "requeue": lambda: delivery.settle(
            Requeue(delivery.task.requeued(preemptions=1).counters, timedelta(seconds=77))
        ),
        "release": lambda: delivery.settle(Release()),
        "dead_letter": lambda: delivery.settle(MoveToDeadLetters("stale", "stale")),
    }


async def _refused(bench: Bench, stale: Delivery, how: str, *, but: str = "") -> None:
    before = await bench.seen()
    for verb, call in _verbs(stale, bench).items():
        if verb == but:
            continue
        with raises(LockLost, f"{verb} {how}"):
            await call()
        assert await bench.seen() == before, f"{verb} {how} has changed something"
    if bench.capabilities.native_checkpoint:
        with raises(LockLost, f"checkpoint {how}"):
            await stale.checkpoint("stale")


@case()
async def after_expiry_and_redelivery(bench: Bench) -> None:
    """The former holder is refused, and the new one's lease is not touched."""
    await bench.pushed()
    stale = await bench.take()
    await bench.expire()
    holder = await bench.take()
    await _refused(bench, stale, "after redelivery")
    await bench.nothing()
    await holder.renew(bench.lease)
    await holder.settle(Complete(DONE))
    await _refused(bench, stale, "after the next one's completion")
    await bench.expire()
    await bench.nothing()


@case()
async def after_complete(bench: Bench) -> None:
    """A task that is done stays done."""
    await bench.pushed()
    delivery = await bench.take()
    await delivery.settle(Complete(DONE))
    await _refused(bench, delivery, "after complete")
    await bench.expire()
    await bench.nothing()


@case()
async def after_requeue(bench: Bench) -> None:
    """Who gave it back has no say any more, before and after the next delivery."""
    await bench.pushed()
    delivery = await bench.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=1).counters, timedelta(seconds=3)))
    await _refused(bench, delivery, "after requeue")
    await bench.clock.advance(4)
    following = await bench.take()
    await _refused(bench, delivery, "after requeue and redelivery")
    assert following.task.counters.failures == 1
    await following.settle(Complete(DONE))


@case()
async def after_release(bench: Bench) -> None:
    """A released task belongs to the next."""
    await bench.pushed()
    delivery = await bench.take()
    await delivery.settle(Release())
    await _refused(bench, delivery, "after release", but="release")
    following = await bench.take()
    await _refused(bench, delivery, "after release and redelivery", but="release")
    await following.settle(Complete(DONE))


@case()
async def after_dead_letter(bench: Bench) -> None:
    """A dead letter is not changed, completed or brought back by its former holder."""
    await bench.pushed()
    delivery = await bench.take()
    await delivery.settle(MoveToDeadLetters("failures", "the first word"))
    await _refused(bench, delivery, "after dead_letter")
    await bench.backend.redrive([delivery.id])
    following = await bench.take()
    await _refused(bench, delivery, "after dead_letter and redrive")
    await following.settle(Complete(DONE))


@case("clears_leased")
async def after_clear(bench: Bench) -> None:
    """A task that was cleared away does not come back."""
    await bench.pushed()
    delivery = await bench.take()
    assert await bench.backend.clear() == 1
    await _refused(bench, delivery, "after clear")
    await bench.expire()
    await bench.nothing()


@case("deduplicates", "clears_leased")
async def after_clear_and_new_push(bench: Bench) -> None:
    """The holder of a cleared task has no say over its successor of the same id."""
    (pushed,) = await bench.pushed()
    delivery = await bench.take()
    await bench.backend.clear()
    await bench.backend.push([pushed])
    await _refused(bench, delivery, "after clear and a new push")
    successor = await bench.take()
    await _refused(bench, delivery, "after clear, a new push and its delivery")
    await successor.settle(Complete(DONE))


@case()
async def refusals_touch_no_other_task(bench: Bench) -> None:
    """S11: refusals about one task leave the other's lease alone."""
    await bench.pushed(2)
    stale, other = await bench.take_all(2)
    await stale.settle(Requeue(stale.task.requeued(failures=1).counters, NOW))
    await _refused(bench, stale, "beside another task")
    await other.renew(bench.lease)
    await other.settle(Complete(DONE))
