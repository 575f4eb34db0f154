"""Dead letters: S6 (original bytes), redrive in a new epoch (S3, S7), purge."""

from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.testing.cases import case
from jobq.testing.harness import DONE, Bench, crashes, stored


@case()
async def keeps_bytes_and_reason(bench: Bench) -> None:
    """S6: the original bytes, the reason, the description, the count and the time are kept."""
    (pushed,) = await bench.pushed(env={"A": "ü"})
    delivery = await bench.take()
    await delivery.settle(MoveToDeadLetters("failures", "exit code 1\nünd a tail\n"))
    (letter,) = await bench.backend.dead_letters(10)
    assert letter.id == pushed.id
    assert letter.body == stored(pushed, letter.body), "the body of a dead letter is the original's (S6)"
    assert (letter.reason, letter.description) == ("failures", "exit code 1\nünd a tail\n")
    assert abs(letter.died - bench.clock.wall()) < 60
    if bench.capabilities.counts_deliveries:
        assert letter.deliveries == 1


@case()
async def dead_is_out_of_the_queue(bench: Bench) -> None:
    """S1: a dead task is not visible, not leased, and is never received."""
    await bench.bury()
    await bench.counts(dead=1)
    assert await bench.backend.peek(10) == []
    await bench.expire()
    await bench.nothing()


@case()
async def oldest_first_and_limited(bench: Bench) -> None:
    """The list begins with the oldest and is as long as asked for, at most."""
    buried = []
    for _ in range(3):
        buried.append((await bench.bury()).id)
        await bench.clock.advance(1)
    assert [each.id for each in await bench.backend.dead_letters(10)] == buried
    assert [each.id for each in await bench.backend.dead_letters(2)] == buried[:2]


@case()
async def redrive_is_a_new_epoch(bench: Bench) -> None:
    """S3, S7: the epoch rises, the budgets are fresh, the history of deliveries counts as explained."""
    await bench.pushed()
    delivery = await bench.take()
    await delivery.settle(Requeue(delivery.task.requeued(failures=3).counters, bench.lease * 0))
    delivery = await bench.take()
    await bench.expire()  # one crash, which the new epoch must not be charged for
    delivery = await bench.take()
    await delivery.settle(MoveToDeadLetters("failures", ""))
    assert await bench.backend.redrive([delivery.id]) == [delivery.id]
    assert await bench.backend.dead_letters(10) == []
    await bench.counts(visible=1)
    again = await bench.take()
    assert again.task.epoch > delivery.task.epoch
    assert again.task.counters.failures == again.task.counters.preemptions == 0
    assert again.task.command == delivery.task.command
    assert again.fencing > delivery.fencing
    if bench.capabilities.counts_deliveries:
        assert again.deliveries == delivery.deliveries + 1, "deliveries are never reset (S3)"
        assert crashes(again) == 0, "the new epoch begins with fresh budgets (S7)"
    await again.settle(Complete(DONE))
    await bench.counts()


@case()
async def redrive_answers_with_what_it_found(bench: Bench) -> None:
    """Unknown ids, waiting tasks and repeats are passed over; a second redrive finds nothing."""
    dead = [await bench.bury() for _ in range(3)]
    (waiting,) = await bench.pushed()
    chosen = [dead[2].id, "unknown", waiting.id, dead[0].id]
    assert sorted(await bench.backend.redrive(chosen)) == sorted([dead[2].id, dead[0].id])
    assert await bench.backend.redrive(chosen) == [], "a repeated redrive has an effect"
    assert [each.id for each in await bench.backend.dead_letters(10)] == [dead[1].id]
    assert {each.id for each in await bench.take_all(3)} == {dead[0].id, dead[2].id, waiting.id}
    assert await bench.backend.redrive([]) == []


@case()
async def redrive_ignores_an_old_not_before(bench: Bench) -> None:
    """A redriven task is visible at once."""
    soon = bench.clock.wall() + 2
    (buried,) = await bench.pushed(not_before=soon)
    await bench.clock.advance(3)
    await (await bench.take()).settle(MoveToDeadLetters("failures", ""))
    await bench.backend.redrive([buried.id])
    assert (await bench.take()).task.not_before is None


@case()
async def dies_again_as_one_letter(bench: Bench) -> None:
    """S6: a task that dies, is redriven and dies again is one dead letter, with the later reason."""
    buried = await bench.bury("failures")
    await bench.backend.redrive([buried.id])
    again = await bench.take()
    body = again.body
    await again.settle(MoveToDeadLetters("crashes", "the second time"))
    (letter,) = await bench.backend.dead_letters(10)
    assert (letter.reason, letter.body) == ("crashes", body)


@case()
async def purge_deletes_for_good(bench: Bench) -> None:
    """Purge deletes the dead letters named, says which, and touches nothing else."""
    dead = [await bench.bury() for _ in range(2)]
    (waiting,) = await bench.pushed()
    held = await bench.take()
    assert await bench.backend.purge_dead(["unknown", dead[0].id, held.id]) == [dead[0].id]
    assert await bench.backend.purge_dead([dead[0].id]) == []
    assert await bench.backend.redrive([dead[0].id]) == []
    assert [each.id for each in await bench.backend.dead_letters(10)] == [dead[1].id]
    await held.renew(bench.lease)
    assert held.id == waiting.id
    await held.settle(Complete(DONE))
