"""`push` of given tasks, and what each push prints of its ids."""

from collections.abc import Sequence
from datetime import timedelta

from jobq.backend import Backend
from jobq.cli.display import terminal
from jobq.cli.interrupts import Interrupted, is_cancellation
from jobq.cli.submit.already_there import known_ids
from jobq.cli.submit.create_queue import say_created
from jobq.errors import JobqError
from jobq.formats.lazy_dataclass import dataclass
from jobq.submit.pusher import Pusher
from jobq.task import Task


class IdsLost(JobqError):
    """Tasks are queued, and nobody can read their ids."""


@dataclass(kw_only=True)
class Echo:
    """Prints acknowledged ids, until they cannot be written: the tasks are queued all the same."""

    ids: bool
    as_json: bool
    kept: list[str] | None = None  # where those are to be kept whose end is waited for
    wait_timeout: timedelta | None = None  # how long it is; None = as long as it takes
    _gone: terminal.OutputGone | None = None
    _lost: int = 0

    def acknowledged(self, ids: Sequence[str]) -> None:
        """Print the ids of one batch, if they were asked for, and keep them if they are waited for."""
        if self.kept is not None:
            self.kept += ids
        if not (self.ids or self.as_json):
            return
        if self._gone is None:
            try:
                for id_ in ids:
                    if self.as_json:
                        terminal.put_json({"id": id_})
                    else:
                        terminal.put(id_)
                terminal.flush()
            except terminal.OutputGone as gone:
                terminal.discard_stdout()
                self._gone = gone
                if gone.is_fault:
                    terminal.complain(str(gone))
        if self._gone is not None:
            self._lost += len(ids)

    def check(self) -> None:
        """Raise IdsLost when ids are missing that somebody would have read."""
        if self._gone is not None and self._gone.is_fault:
            are = "1 task is queued, but its id" if self._lost == 1 else f"{self._lost} tasks are queued, but their ids"
            raise IdsLost(f"{are} could not be written")


def pusher_to(backend: Backend, echo: Echo, *, creates: bool = True) -> Pusher:
    """Return what pushes for the command line: it prints ids, and says that it made a queue."""
    return Pusher(
        backend,
        creates=creates,
        on_created=lambda: say_created(backend),
        on_acknowledged=echo.acknowledged,
    )


async def push_given(pusher: Pusher, tasks: list[Task], backend: Backend) -> int:
    """Queue tasks that came from the command line; return the exit code."""
    known = await known_ids(backend, tasks)
    try:
        await pusher.push_all(tasks)
    except JobqError as error:
        if pusher.count:
            error.add_note(f"the first {pusher.count} tasks are queued")
        raise
    except BaseException as error:
        if is_cancellation(error):
            raise Interrupted(pusher.summary(), pusher.doubtful) from None
        raise
    pusher.known += len(known)
    terminal.say(pusher.summary())
    return 0
