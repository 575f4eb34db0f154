"""`jobq QUEUE push --wait`: prints each task that ends, and ends with the worst exit code."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from jobq.cli.display import format_journal, terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.interrupts import Interrupted
from jobq.errors import BackendUnavailable, ConfigurationError, JobqError, QueueNotFound
from jobq.formats import durations
from jobq.journal.store import journal_of
from jobq.journal.wait_for_end import ended, patiently
from jobq.task_handle import result_of

if TYPE_CHECKING:
    from jobq.backend import Backend
    from jobq.task import TaskResult

_SIGNAL: Final = 128
_MOST: Final = 255
_NO_ID: Final = "none"
_LOOK_SECONDS: Final = 15.0  # between two looks whether the queue holds anything


async def check_journal(backend: "Backend") -> None:
    """See to it, before anything is queued, that the end of it can be heard of; raises ConfigurationError."""
    try:
        await journal_of(backend).find([_NO_ID])
    except (QueueNotFound, BackendUnavailable):
        pass  # the push makes it, or fails
    except ConfigurationError:  # the table of a journal is missing: that is made with its queue alone
        try:
            await backend.stats()
        except QueueNotFound:
            return
        raise


async def wait_for(backend: "Backend", ids: Sequence[str], *, as_json: bool, timeout: timedelta | None = None) -> int:
    """Wait until all have ended; return the worst exit code.

    A task that was killed by signal n counts as 128 + n, as in a shell; one that has no exit code, since it was
    canceled, timed out or never started, as 1; one whose outcome is unknown as 75: nobody has recorded it, and either
    the time is over or the queue has held nothing for two leases (S5).

    Args:
        backend: where they were pushed.
        ids: the tasks.
        as_json: print an object for each.
        timeout: how long to wait; None = as long as the queue holds anything.
    """
    journal = journal_of(backend)
    worst = done = failed = 0
    away = _Away()
    left_ids = Counter(ids)  # two tasks may have one id
    try:
        with Bar("waiting", len(ids)) as bar:
            async with _until_hopeless(backend, left_ids, timeout):
                lag = backend.capabilities.record_lag
                async for id_, record in ended(journal, ids, away=away.say, lag=lag, unseen=lag > 0):
                    away.said = ""
                    done += 1
                    if record is None:
                        worst, failed = max(worst, 1), failed + 1
                        terminal.say(f"{id_} is not known any more: it was cleared or purged", is_error=True)
                        left_ids -= Counter([id_])
                        continue
                    result = await patiently(lambda: result_of(journal, record), away.say)  # noqa: B023 - called at once
                    left_ids -= Counter([id_])
                    code = exit_code_of(result)
                    worst, failed = max(worst, code), failed + bool(code)
                    if as_json:
                        terminal.put_json(format_journal.result_as_json(id_, str(record.state), result))
                        terminal.flush()
                    else:
                        terminal.say(_line(id_, result))
                    bar.show(done, f"{done} of {len(ids)}, {failed} failed")
    except asyncio.CancelledError:
        raise Interrupted(left(len(ids) - done, len(ids))) from None
    except TimeoutError:
        worst = max(worst, BackendUnavailable.exit_code)
        for id_ in left_ids.elements():
            if as_json:
                terminal.put_json({"id": id_, "state": "unknown", "outcome": "unknown"})
            else:
                terminal.say(f"{id_} outcome unknown: `jobq QUEUE status {id_}` shows what is recorded of it later")
    if not as_json:
        others = ((failed, "did not"), (left_ids.total(), "unknown"))
        rest = "".join(f", {count} {what}" for count, what in others if count)
        terminal.say(f"{done - failed} of {len(ids)} succeeded{rest}")
    return worst


@asynccontextmanager
async def _until_hopeless(
    backend: "Backend", left_ids: "Counter[str]", timeout: timedelta | None
) -> AsyncIterator[None]:
    """Raise TimeoutError when the time is over, or when no record can be expected any more.

    A journal beside a Storage Queue is written after the settle: a worker that dies between the two, or writes none,
    leaves no record for ever. A queue that holds nothing for two leases will bring none.
    """
    loop = asyncio.get_running_loop()
    lease = backend.capabilities.default_lease.total_seconds()
    async with asyncio.timeout(None if timeout is None else timeout.total_seconds()) as limit:

        async def look() -> None:
            empty_since: float | None = None
            while True:
                await asyncio.sleep(min(_LOOK_SECONDS, lease / 2))
                with suppress(JobqError):  # the wait says that the service is away
                    stats = await backend.stats()
                    if not stats.is_known or stats.unfinished:
                        empty_since = None
                        continue
                    if empty_since is None:
                        empty_since = loop.time()
                        terminal.say(
                            f"the queue is empty, and nobody has recorded what became of {left_ids.total()} tasks;"
                            f" waiting for that {durations.show(2 * lease)} more at most",
                            is_error=True,
                        )
                    elif loop.time() - empty_since >= 2 * lease:
                        limit.reschedule(loop.time())

        looking = asyncio.create_task(look(), name="looks whether anything is left to wait for")
        try:
            yield
        finally:
            looking.cancel()


class _Away:
    """Says once that the service does not answer: the tasks are queued, a second push would run them twice."""

    said = ""

    def say(self, error: BackendUnavailable) -> None:
        """Say it, unless it was said already."""
        if not self.said:
            self.said = str(error)
            terminal.say(f"{error}; still waiting", is_error=True)


def left(count: int, of: int) -> str:
    """Return what to say of tasks that nobody waits for any more."""
    return f"{count} of {of} tasks have not ended as far as this knows, and go on without it"


def exit_code_of(result: "TaskResult") -> int:
    """Return what a shell would see of it."""
    if result.succeeded:
        return 0
    if result.signal is not None:
        return min(_SIGNAL + result.signal, _MOST)
    return min(result.exit_code or 1, _MOST)


def _line(id_: str, result: "TaskResult") -> str:
    took = f" after {format_journal.age(result.duration)}" if result.duration else ""
    detail = f": {result.detail}" if result.detail and not result.succeeded else ""
    return f"{id_} {result.outcome}{took}{detail}"
