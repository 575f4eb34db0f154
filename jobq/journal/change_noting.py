"""Noting a change: before anything is done, and once more with what came of it.

Who changes something says how a note is written, and what it means that it cannot be.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from jobq.errors import ConfigurationError
from jobq.journal.changes import QueueChange

Write = Callable[[QueueChange], Awaitable[object]]


@dataclass
class ChangeSaid:
    """What came of a change, to be filled in by who does it.

    Attributes:
        said: for people; also of what was done before it failed.
        count: to how many it was done; None = to the queue as such, or not counted.
    """

    said: str = ""
    count: int | None = None


@asynccontextmanager
async def noting(change: QueueChange, begin: Write, end: Write) -> AsyncIterator[ChangeSaid]:
    """Note a change for as long as the context is entered; who is killed within it leaves a note that it began.

    Args:
        change: what is to be done.
        begin: writes it; what it raises is raised, and nothing is to be done then.
        end: writes in its place how it ended.
    """
    await begin(change)
    told = ChangeSaid(count=change.count)
    try:
        yield told
    except BaseException as error:
        state = "refused" if isinstance(error, ConfigurationError) else "failed"
        said = "; ".join(filter(None, [str(error) or type(error).__name__, told.said]))
        await end(replace(change, state=state, said=said, count=told.count))
        raise
    await end(replace(change, state="done", said=told.said, count=told.count))
