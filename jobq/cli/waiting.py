"""`jobq QUEUE push --wait`: tells of each task that ends, and ends with the worst exit code."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jobq.cli import shown, terminal
from jobq.cli.interrupts import Interrupted
from jobq.cli.progress import Bar
from jobq.errors import BackendUnavailable
from jobq.handle import result_of
from jobq.journal.store import journal_of
from jobq.journal.waiting import ended, patiently

if TYPE_CHECKING:
    from jobq.backend import Backend
    from jobq.task import TaskResult

_SIGNAL: Final = 128
_MOST: Final = 255


async def wait_for(backend: "Backend", ids: Sequence[str], *, as_json: bool) -> int:
    """Wait until all have ended; return the worst exit code.

    A task that was killed by signal n counts as 128 + n, as in a shell; one that has no exit code, since it was
    canceled, timed out or never started, as 1.
    """
    journal = journal_of(backend)
    worst = done = failed = 0
    away = _Away()
    try:
        with Bar("waiting", len(ids)) as bar:
            async for id_, record in ended(journal, ids, away=away.tell):
                away.said = ""
                done += 1
                if record is None:
                    worst, failed = max(worst, 1), failed + 1
                    terminal.tell(f"{id_} is not known any more: it was cleared or purged", is_error=True)
                    continue
                result = await patiently(lambda: result_of(journal, record), away.tell)  # noqa: B023 - called at once
                code = exit_code_of(result)
                worst, failed = max(worst, code), failed + bool(code)
                if as_json:
                    terminal.put_json(shown.result_as_json(id_, str(record.state), result))
                    terminal.flush()
                else:
                    terminal.tell(_line(id_, result))
                bar.show(done, f"{done} of {len(ids)}, {failed} failed")
    except asyncio.CancelledError:
        raise Interrupted(left(len(ids) - done, len(ids))) from None
    if not as_json:
        terminal.tell(f"{done - failed} of {len(ids)} succeeded" + (f", {failed} did not" if failed else ""))
    return worst


class _Away:
    """Tells once that the service does not answer: the tasks are queued, a second push would run them twice."""

    said = ""

    def tell(self, error: BackendUnavailable) -> None:
        """Tell, unless it was told already."""
        if not self.said:
            self.said = str(error)
            terminal.tell(f"{error}; still waiting", is_error=True)


def left(count: int, of: int) -> str:
    """Return what to tell of tasks that nobody waits for any more."""
    return f"{count} of {of} tasks have not ended as far as this knows, and go on without it"


def exit_code_of(result: "TaskResult") -> int:
    """Return what a shell would see of it."""
    if result.succeeded:
        return 0
    if result.signal is not None:
        return min(_SIGNAL + result.signal, _MOST)
    return min(result.exit_code or 1, _MOST)


def _line(id_: str, result: "TaskResult") -> str:
    took = f" after {shown.age(result.duration)}" if result.duration else ""
    detail = f": {result.detail}" if result.detail and not result.succeeded else ""
    return f"{id_} {result.outcome}{took}{detail}"
