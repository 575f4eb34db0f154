"""What one attempt tells the journal, on its way there: the supervisor writes it, the delivery takes it along.

A delivery of a queue that keeps a journal has a page. What stands on it goes with the next renewal (the beat) or into
the transaction of the settle (the attempt); a wish to cancel comes back with the renewal. So the journal costs no
request of its own, and is never ahead of the queue (S5).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from jobq.journal.records import MOVED, Attempt, Beat


@dataclass(eq=False, slots=True, kw_only=True)
class Page:
    """One attempt's.

    Attributes:
        beat: makes what to tell with a renewal; None = nothing is known yet.
        attempt: what the attempt came to; written with the settle that is accepted.
        output: the end of what it printed, likewise.
        progress: what the task says of how far it has come: a share from 0 to 1 or None, and a text.
        cancel: set when somebody wants the task to end.
    """

    beat: Callable[[], Beat] | None = None
    attempt: Attempt | None = None
    output: str = ""
    progress: tuple[float | None, str] = (None, "")
    cancel: asyncio.Event = field(default_factory=asyncio.Event)

    def told(self) -> str | None:
        """Return the beat as it is stored; None = leave the stored one."""
        return None if self.beat is None else self.beat().encode()


def final_of(page: Page | None) -> str | None:
    """Return what a task that is completed now has come to, where that is not success: `canceled` or `moved`."""
    then = None if page is None or page.attempt is None else page.attempt.then
    return then if then in ("canceled", MOVED) else None


def page_of(delivery: object) -> Page | None:
    """Return a delivery's page, if its queue keeps a journal."""
    return getattr(delivery, "page", None)
