"""A queue whose batches are in a ledger of Azurite, and what tests of that have in common."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from urllib.parse import unquote

from jobq.batch_plan import Plan
from jobq.batches import Batch, BatchState
from jobq.settlement import Complete
from jobq.task import Task, new_id
from jobq.testing.harness import DONE
from jobq_azure.ledger.queue import LedgerQueue
from jobq_azure.storage.message_format import MessageContent
from tests.azure.journal.journal_stage import journaled
from tests.azure.stage import LEASE, NOW, Stage
from tests.support.http_proxy import ProxiedRequest

NAME: Final = "s7"
SOON: Final = timedelta(seconds=1)
THEN: Final = Plan(then=(Task.new(command="python merge.py", id="any").encode().decode(),))


async def ledgered(stage: Stage, *, behind: bool = False) -> LedgerQueue:
    """Return the queue of a stage with its ledger, entered, through the proxies or behind them."""
    found = await journaled(stage, behind=behind)
    assert isinstance(found, LedgerQueue)
    return found


async def pushed(queue: LedgerQueue, count: int = 1, name: str = NAME) -> list[Task]:
    """Push new tasks to a batch, which is begun where there is none."""
    await queue.batches.begin(name, Plan())
    tasks = [Task.new(command="true", batch=name, id=f"{name}.{new_id()[-12:]}") for _ in range(count)]
    await queue.push(tasks)
    return tasks


async def book_of(stage: Stage) -> str:
    """Return the book that the first message of a queue names."""
    (message,) = await (await stage.wire()).peek(1)
    work = Task.decode(MessageContent.read(message.text).body).work
    assert work is not None
    return str(work.ledger)


async def drained(queue: LedgerQueue) -> list[str]:
    """Run all that can be had at once; return the ids."""
    ran: list[str] = []
    while found := await queue.receive(8, LEASE, NOW):
        for delivery in found:
            await delivery.settle(Complete(DONE))
            ran.append(delivery.id)
    return ran


async def finished(queue: LedgerQueue, name: str = NAME) -> Batch:
    """Return a batch, which has finished."""
    found = await queue.batches.find(name)
    assert found.state is BatchState.FINISHED, found
    return found


def of_ledger(requests: Sequence[ProxiedRequest]) -> list[ProxiedRequest]:
    """Return the requests that are about a ledger."""

    def is_one(request: ProxiedRequest) -> bool:
        said = unquote(request.body.decode(errors="replace")) + request.query.get("$filter", "")
        return "!b!" in said or "!b'" in said or '!b"' in said

    return [request for request in requests if is_one(request)]
