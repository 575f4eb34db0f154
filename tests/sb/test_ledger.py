"""Batches on Service Bus: a message that goes back is another one, which the ledger has before it is sent."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from jobq.batch_plan import Plan
from jobq.batches import check_batches
from jobq.errors import AllPutBack, ConfigurationError, DuplicateTask, JobqError, LockLost, MalformedTask
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Counters, Task
from jobq.testing.harness import DONE
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.rest_client import Outgoing
from tests.azure.emulator import Azurite
from tests.azure.ledger.ledger_stage import NAME, SOON, THEN, drained, finished, pushed
from tests.azure.ledger.sites import BusSite, sited
from tests.azure.stage import LEASE, NOW
from tests.emulators.service_bus.fidelity import Fidelity
from tests.sb.stage import OTHER_WAY
from tests.support.http_proxy import ProxiedRequest, Strike

pytestmark = pytest.mark.timeout(120)
AGAIN = Requeue(Counters(failures=1, ends=1))


@pytest.fixture(params=[None, OTHER_WAY], ids=["with a window", "without, and contested the other way"])
async def site(request: pytest.FixtureRequest, azurite: Azurite, tmp_path: Path) -> AsyncIterator[BusSite]:
    # Where the service counts deliveries from 0, a handle knows that once it has seen a 0: see the last test but one.
    way = request.param and replace(request.param, rest_first_delivery_count=1)
    async with sited("service-bus", azurite, tmp_path, window=way is None, fidelity=way) as found:
        assert isinstance(found, BusSite)
        yield found


@pytest.fixture(autouse=True)
def _sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobq_azure.table_journal.backend._PUT_OFF", timedelta(seconds=1))


def _bus(queue: LedgerQueue) -> ServiceBusBackend:
    return cast("ServiceBusBackend", queue._inner)


def _is_send(request: ProxiedRequest) -> bool:
    return request.method == "POST" and request.path.endswith("/messages")


async def _once_there(queue: LedgerQueue, ids: set[str]) -> list[str]:
    """Run what comes until these have run; return the ids in their order."""
    ran: list[str] = []
    async with asyncio.timeout(40):
        while not ids <= set(ran):
            with suppress(AllPutBack):
                for delivery in await queue.receive(8, LEASE, SOON):
                    await delivery.settle(Complete(DONE))
                    ran.append(delivery.id)
    return ran


@pytest.mark.parametrize("back", [AGAIN, Release()], ids=["requeued", "released"])
async def test_a_put_back_that_died_before_its_clone_is_repeated_by_the_original(
    site: BusSite, back: Requeue | Release
) -> None:
    """S6: it does not run again before; and what it had counted is counted once."""
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    (task,) = await pushed(queue)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    site.proxies[0].strike(Strike.BREAK, count=math.inf, matches=_is_send)
    with suppress(JobqError):
        await delivery.settle(back)
    await site.proxies[0].heal()
    entry = await queue._ledger.find((await queue._heads.found(NAME)).book, task.id)
    assert entry is not None
    assert entry.is_replacing(cast("Any", delivery)._inner.message_origin)
    (again,) = await other.receive(1, LEASE, timedelta(seconds=20))
    assert again.task.generation == 1, "it is the clone, not the original"
    assert again.task.counters.failures == (back is AGAIN)
    assert again.deliveries - 1 - again.task.counters.ends == 0, "it has crashed nobody"
    await again.settle(Complete(DONE))
    await queue.batches.seal(NAME)
    assert (await finished(queue)).counts["succeeded"] == 1
    assert await site.total() == 0


async def test_an_original_beside_its_clone_is_done_with(site: BusSite) -> None:
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    (task,) = await pushed(queue)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    site.proxies[0].strike(Strike.BREAK, "DELETE", count=math.inf)
    with suppress(JobqError):
        await delivery.settle(AGAIN)
    await site.proxies[0].heal()
    (held,) = await other.receive(1, LEASE, SOON)
    assert held.task.generation == 1
    async with asyncio.timeout(30):
        while await site.total() != 1:  # its own: the original is completed when it comes
            await held.renew(LEASE)
            with suppress(AllPutBack):
                assert await queue.receive(1, LEASE, SOON) == []
    await held.settle(Complete(DONE))
    await queue.batches.seal(NAME)
    assert (await finished(queue)).counts["succeeded"] == 1
    assert await drained(queue) == []
    assert task.id == held.id


async def test_who_has_put_it_back_and_lost_the_lock_ends_nothing(site: BusSite) -> None:
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    await pushed(queue)
    (stale,) = await queue.receive(1, LEASE, NOW)
    (held,) = await other.receive(1, LEASE, timedelta(seconds=20))
    for settlement in (Complete(DONE), AGAIN, MoveToDeadLetters("failed", "too late")):
        with pytest.raises(LockLost):
            await stale.settle(settlement)
    await held.settle(Complete(DONE))
    await queue.batches.seal(NAME)
    assert (await finished(queue)).counts["succeeded"] == 1
    assert await site.total() == 0


async def test_what_is_put_off_while_the_table_is_away_is_claimed_in_its_place(site: BusSite) -> None:
    """By a worker that had it and died, and by none: messages replace each other, of which no ledger hears."""
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    ids = {task.id for task in await pushed(queue, 2)}
    (died,) = await other.receive(1, LEASE, NOW)
    site.tables.strike(Strike.BUSY, count=math.inf)
    numbers = {message.number for message in site.stage.queue.messages()}
    async with asyncio.timeout(60):
        while numbers & {message.number for message in site.stage.queue.messages()}:
            with suppress(AllPutBack):
                assert await queue.receive(8, LEASE, SOON) == []
    await site.tables.heal()
    await queue.batches.seal(NAME)
    assert sorted(await _once_there(queue, ids)) == sorted(ids)
    assert (await finished(queue)).counts["succeeded"] == 2
    with pytest.raises(LockLost):
        await died.settle(Complete(DONE))
    assert await site.total() == 0


async def test_an_original_that_was_claimed_again_is_not_replaced(site: BusSite) -> None:
    """It was put off without the ledger, and came again before what was to replace it."""
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    (task,) = await pushed(queue)
    (original,) = await _bus(queue).receive(1, LEASE, NOW)
    site.proxies[0].strike(Strike.BREAK, "DELETE", count=math.inf)
    with suppress(JobqError):
        await original.settle(Release(timedelta(seconds=8)))
    await site.proxies[0].heal()
    (held,) = await other.receive(1, LEASE, timedelta(seconds=20))
    assert (held.id, held.task.generation) == (task.id, 0)
    async with asyncio.timeout(30):
        while await site.total() != 1:
            await held.renew(LEASE)
            with suppress(AllPutBack):
                assert await queue.receive(1, LEASE, SOON) == []
    await held.settle(Complete(DONE))
    await queue.batches.seal(NAME)
    assert (await finished(queue)).counts["succeeded"] == 1


@pytest.mark.parametrize("back", [AGAIN, Release()], ids=["requeued", "released"])
async def test_what_was_put_off_in_vain_takes_no_name_from_what_is_put_back(
    site: BusSite, back: Requeue | Release
) -> None:
    """It was put off without the ledger, came again, and its copy was done with unrun: the broker remembers that."""
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    (task,) = await pushed(queue)
    (original,) = await _bus(queue).receive(1, LEASE, NOW)
    site.proxies[0].strike(Strike.BREAK, "DELETE", count=math.inf)
    with suppress(JobqError):
        await original.settle(Release(timedelta(seconds=8)))
    await site.proxies[0].heal()
    (held,) = await other.receive(1, LEASE, timedelta(seconds=20))
    async with asyncio.timeout(30):
        while await site.total() != 1:
            await held.renew(LEASE)
            with suppress(AllPutBack):
                assert await queue.receive(1, LEASE, SOON) == []
    await held.settle(back)
    assert await _once_there(queue, {task.id}) == [task.id]
    await queue.batches.seal(NAME)
    assert (await finished(queue)).counts["succeeded"] == 1


async def test_of_two_that_replace_one_message_none_takes_the_place_of_the_other(site: BusSite) -> None:
    """It was put off without the ledger, by half; and again while its copy ran; and so was then what replaced it."""
    queue = await site.ledgered()
    (task,) = await pushed(queue)
    (original,) = await _bus(queue).receive(1, LEASE, NOW)
    site.proxies[0].strike(Strike.BREAK, "DELETE", count=math.inf)
    with suppress(JobqError):
        await original.settle(Release())
    await site.proxies[0].heal()
    (held,) = await queue.receive(1, LEASE, NOW)
    assert (held.id, held.task.generation) == (task.id, 1)
    for generation in range(2):
        async with asyncio.timeout(20):
            while not (found := await _bus(queue).receive(1, LEASE, SOON)):
                await held.renew(LEASE)
        assert found[0].task.generation == generation
        await found[0].settle(Release())
    await held.renew(LEASE)
    with suppress(AllPutBack):
        assert await queue.receive(1, LEASE, timedelta(seconds=2)) == []
    await held.settle(Complete(DONE))
    await queue.batches.seal(NAME)
    assert (await finished(queue)).counts["succeeded"] == 1
    assert await site.total() == 0


@pytest.mark.parametrize("do", ["redrive", "purge"])
async def test_what_the_service_itself_gave_up_on_is_put_back_or_deleted(site: BusSite, do: str) -> None:
    """Its count of deliveries was used up; the ledger has not heard of that."""
    site.stage.queue.description = replace(site.stage.queue.description, max_delivery_count=1)
    queue = await site.ledgered()
    (task,) = await pushed(queue)
    await queue.receive(1, LEASE, NOW)
    await queue.batches.seal(NAME)
    async with asyncio.timeout(20):
        while not (letters := await queue.dead_letters(9)):
            with suppress(AllPutBack):
                await queue.receive(1, LEASE, SOON)
    assert [(each.id, each.batch, each.reason) for each in letters] == [(task.id, NAME, "MaxDeliveryCountExceeded")]
    if do == "redrive":
        assert await queue.redrive([task.id]) == [task.id]
        assert await drained(queue) == [task.id]
        assert (await finished(queue)).counts["succeeded"] == 1
    else:
        assert await queue.purge_dead([task.id]) == [task.id]
        assert (await finished(queue)).counts["gone"] == 1
    assert await queue.dead_letters(9) == []


async def test_what_is_dead_has_its_letter_though_its_message_is_cleared_meanwhile(site: BusSite) -> None:
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    (task,) = await pushed(queue)
    await queue.batches.seal(NAME)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    site.stage.queue.complete(cast("Any", delivery)._inner._locked.token)  # as a clear does, once the lock is over
    await delivery.settle(MoveToDeadLetters("failed", "by the test"))
    assert (await finished(queue)).counts["dead"] == 1
    with suppress(AllPutBack):
        assert await other.receive(1, LEASE, SOON) == []
    assert [(each.id, each.description) for each in await queue.dead_letters(10)] == [(task.id, "by the test")]
    assert await queue.redrive([task.id]) == [task.id]
    assert await drained(queue) == [task.id]
    assert (await finished(queue)).round == 2


async def test_a_clear_leaves_what_runs_and_takes_what_a_dead_worker_had(site: BusSite) -> None:
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    await pushed(queue, 3)
    (died,) = await other.receive(1, LEASE, NOW)
    (runs,) = await queue.receive(1, LEASE, NOW)
    await asyncio.sleep(3)
    await runs.renew(LEASE)
    await asyncio.sleep(2.5)
    await queue.batches.seal(NAME)
    await runs.renew(LEASE)
    await queue.clear()
    await runs.settle(Complete(DONE))
    ended = await finished(queue)
    assert {name: count for name, count in ended.counts.items() if count} == {"succeeded": 1, "gone": 2}
    with pytest.raises(LockLost):
        await died.settle(Complete(DONE))
    assert await site.total() == 0


async def test_ids_of_two_batches_are_two_tasks_though_the_broker_knows_one(site: BusSite) -> None:
    """Its window drops a second message of a name, without a word; in one push, and in a push after the other."""
    queue = await site.ledgered()
    tasks = [Task.new(command=f"echo {name}", id="same", batch=name) for name in ("a", "b")]
    for name in ("a", "b"):
        await queue.batches.begin(name, Plan())
    assert await queue.push(tasks) == ["same", "same"]
    assert await queue.push([Task.new(command="true", id="same")]) == ["same"]
    assert await queue.push(tasks) == ["same", "same"]
    with pytest.raises(DuplicateTask):
        await queue.push([Task.new(command="false", id="same", batch="a")])
    for delivery in await queue.receive(8, LEASE, SOON):
        await delivery.settle(MoveToDeadLetters("failed", f"of {delivery.task.batch}"))
    assert await drained(queue) == []
    assert {each.batch for each in await queue.dead_letters(9)} == {"a", "b", None}
    assert await queue.redrive([task.id for task in tasks[:1]]) == ["same"]
    assert await drained(queue) == ["same"] * 3
    for name in ("a", "b"):
        await queue.batches.seal(name)
        assert (await finished(queue, name)).counts["succeeded"] == 1


async def test_a_push_that_died_behind_its_messages_is_repeated_and_runs_once(site: BusSite) -> None:
    queue = await site.ledgered()
    await queue.batches.begin(NAME, THEN)
    tasks = [Task.new(command="true", batch=NAME, id=f"{NAME}.{number}") for number in range(3)]
    site.proxies[0].strike(Strike.LOSE_ANSWER, matches=_is_send)
    with suppress(JobqError):
        await queue.push(tasks)
    assert await queue.push(tasks) == [task.id for task in tasks]
    assert await site.total() == 6
    await queue.batches.seal(NAME)
    assert sorted(await drained(queue)) == [f"jobq.then.{NAME}.1", *(task.id for task in tasks)]
    assert (await finished(queue)).counts["succeeded"] == 3
    assert await site.total() == 0


async def test_what_is_put_back_later_is_due_then_also_where_that_is_repeated(site: BusSite) -> None:
    queue, other = await site.ledgered(), await site.ledgered(behind=True)
    await pushed(queue)
    (delivery,) = await queue.receive(1, LEASE, NOW)
    site.proxies[0].strike(Strike.BREAK, count=math.inf, matches=_is_send)
    with suppress(JobqError):
        await delivery.settle(replace(AGAIN, delay=timedelta(minutes=10)))
    await site.proxies[0].heal()
    assert (await queue.batches.find(NAME)).counts["scheduled"] == 1
    async with asyncio.timeout(20):
        while not [each for each in await _bus(queue)._amqp().peek(9) if each.is_scheduled]:
            with suppress(AllPutBack):
                assert await other.receive(1, LEASE, SOON) == []
    assert await site.total() == 1
    await queue.batches.cancel(NAME)
    assert (await finished(queue)).counts["canceled"] == 1


async def test_who_uses_no_tables_runs_nothing_of_a_batch(
    site: BusSite, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq_azure.service_bus.backend.PUT_OFF", timedelta(seconds=1))
    queue, plain = await site.ledgered(), site.stage.backend
    with pytest.raises(ConfigurationError, match="JOBQ_JOURNAL=tables://ACCOUNT"):
        check_batches(plain)
    (task,) = await pushed(queue)
    (other,) = await site.stage.pushed()
    with caplog.at_level(logging.WARNING):
        found = await plain.receive(8, None, SOON)
    assert [each.id for each in found] == [other.id]
    assert "set JOBQ_JOURNAL=tables for whoever pushes and works (on Service Bus tables://ACCOUNT)" in caplog.text
    await found[0].settle(Complete(DONE))
    assert await _once_there(queue, {task.id}) == [task.id]
    (dead,) = await pushed(queue)
    (delivery,) = await queue.receive(1, LEASE, SOON)
    await delivery.settle(MoveToDeadLetters("failed", "by the test"))
    for verb in (plain.redrive, plain.purge_dead):
        with pytest.raises(ConfigurationError, match="set JOBQ_JOURNAL=tables"):
            await verb([dead.id])
    assert [each.id for each in await queue.dead_letters(10)] == [dead.id]


async def test_a_letter_that_no_ledger_knows_stays_and_is_purged(site: BusSite) -> None:
    queue = await site.ledgered()
    lost = Task.new(command="true", id="s9.1", batch="s9").in_ledger("s9~0")
    await _bus(queue)._wire.send(Outgoing(body=lost.encode(), message_id="x"))
    locked = await _bus(queue)._wire.lock(0)
    assert locked is not None
    await _bus(queue)._amqp().dead_letter(locked.token, "failed", "by another program", {})
    (task,) = await pushed(queue)
    for delivery in await queue.receive(8, LEASE, SOON):
        await delivery.settle(MoveToDeadLetters("failed", "by the test"))
    assert {each.id for each in await queue.dead_letters(10)} == {"s9.1", task.id}
    with pytest.raises(ConfigurationError, match="nothing is known any more") as raised:
        await queue.redrive(["s9.1", task.id])
    assert raised.value.done == [task.id]
    assert await queue.purge_dead(["s9.1"]) == ["s9.1"]
    assert await drained(queue) == [task.id]


async def test_what_has_no_room_at_the_end_is_refused_when_it_is_begun(site: BusSite) -> None:
    queue = await site.ledgered()
    large = Task.new(argv=["echo", *(3 * ["x" * 100_000])], id="any").encode().decode()
    with pytest.raises(MalformedTask, match="this queue has room for"):
        await queue.batches.begin(NAME, Plan(then=(large,)))


async def test_the_counts_are_exact_though_two_deliveries_have_one_number(azurite: Azurite, tmp_path: Path) -> None:
    """A service that counts from 0, and a worker that has seen no 0: it takes the second delivery for the first."""
    counts_from_0 = Fidelity(rest_first_delivery_count=0)
    async with sited("service-bus", azurite, tmp_path, fidelity=counts_from_0) as site:
        queue, other = await site.ledgered(), await site.ledgered(behind=True)
        await pushed(queue)
        (stale,) = await queue.receive(1, LEASE, NOW)
        (held,) = await other.receive(1, LEASE, timedelta(seconds=20))
        for delivery in (stale, held):
            await delivery.settle(Complete(DONE))
        await queue.batches.seal(NAME)
        assert (await finished(queue)).counts["succeeded"] == 1
        assert await drained(queue) == []


async def test_the_commands_of_a_batch(site: BusSite) -> None:
    (site.folder / "tasks.txt").write_text("echo a\nexit 3\n")
    line = ("push", "--batch", NAME, "--num-retries", "0", str(site.folder / "tasks.txt"))
    assert "JOBQ_LEASES names such a queue" in (await site.run(*line)).err
    for _ in range(2):  # the same line again queues nothing twice
        told = await site.run(*line, JOBQ_LEASES="cursors")
        assert told.code == 0, told.err
        assert "with 2 tasks" in told.err
    assert await site.total() == 2
    refused = await site.stage.run("push", "--batch", "s8", "-c", "true")
    assert refused.code == 3
    assert "JOBQ_JOURNAL=tables://ACCOUNT is" in refused.err
    assert (await site.run("worker")).code == 0
    shown = json.loads((await site.run("batch", "show", NAME, "--json")).out)
    assert (shown["state"], shown["counts"]["succeeded"], shown["counts"]["dead"]) == ("finished", 1, 1)
    assert "exit 3" in (await site.run("dead", "list", "--batch", NAME)).out
    rows = [json.loads(row) for row in (await site.run("results", "--batch", NAME)).out.splitlines()]
    assert sorted(row["state"] for row in rows) == ["dead", "succeeded"]
    assert (await site.run("batch", "retry", NAME)).code == 0
    assert "round 2" in (await site.run("batch", "show", NAME)).out
    assert (await site.run("batch", "cancel", NAME, "--yes")).code == 0
    listed = json.loads((await site.run("batch", "list", "--json")).out.splitlines()[0])
    assert (listed["state"], listed["round"], listed["counts"]["canceled"]) == ("finished", 2, 1)


async def test_a_batch_is_forgotten_by_a_worker_and_its_name_is_as_new(site: BusSite) -> None:
    """From its push to its next one, by the commands alone; one that has a dead letter stays until that is deleted."""
    for name, command in ((NAME, "true"), ("ill", "exit 3")):
        pushing = await site.run("push", "--batch", name, "--id", f"{name}.1", "--num-retries", "0", "-c", command)
        assert pushing.code == 0, pushing.err
        await site.run("batch", "seal", name)
    assert (await site.run("worker")).code == 0
    assert "finished" in (await site.run("batch", "show", NAME)).out
    await _swept(site)
    assert "ill" in (await site.run("batch", "list")).out
    assert (await site.run("batch", "show", NAME)).code != 0
    assert (await site.run("results", "--batch", NAME)).out == ""
    assert (await site.run("dead", "purge", "--all", "--yes")).code == 0
    await _swept(site)
    assert (await site.run("batch", "list", "--json")).out == ""
    for _ in range(2):  # the table knows an id again, whatever the queue does
        again = await site.run("push", "--batch", NAME, "--id", f"{NAME}.1", "-c", "echo again")
        assert again.code == 0, again.err
    assert "succeeded=1" in (await site.run("worker")).err
    shown = json.loads((await site.run("batch", "show", NAME, "--json")).out)
    assert (shown["total"], shown["counts"]["succeeded"]) == (1, 1)


async def _swept(site: BusSite) -> None:
    """Let a worker that keeps nothing run until it has swept: it does that while it runs a task."""
    assert (await site.run("push", "-c", "sleep 3")).code == 0
    for _ in range(3):  # a link that was closed a moment before may have been handed it, for the time of a lock
        worker = await site.run("worker", JOBQ_KEEP="0s")
        if "succeeded=1" in worker.err:
            return
        await asyncio.sleep(5)
    pytest.fail(worker.err)
