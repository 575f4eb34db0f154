"""How tasks are pushed: one policy for the library and for each way of the command line.

A queue that is missing is made, unless that is forbidden. Where an answer was lost, the push is repeated once with the
same ids if the service takes none of them twice; anywhere else, and when that answer is lost too, it is PushUnknown
with the ids (S8). Only what was acknowledged counts as queued (S1). What a busy service
refuses is repeated for half a minute.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from jobq.at_once import is_at_once
from jobq.backend import Backend
from jobq.batches import check_batches
from jobq.clock import SystemClock
from jobq.errors import AccessDenied, JobqError, PushUnknown, QueueNotFound
from jobq.formats import strict_json
from jobq.signing.signer import Signer, signer_of
from jobq.task import Task

if TYPE_CHECKING:
    import asyncio

CHUNK_TASKS: Final = 500
# One task more at most: below what the service takes as one request.
CHUNK_BYTES: Final = 4 * 1024 * 1024
CHUNK_VALUES: Final = 400_000
FINISH_SECONDS: Final = 4.0  # what a cancelled push is left, to be acknowledged
TAKE_BACK_SECONDS: Final = 4.0  # and then, cancelled, to be taken back; together less than `docker stop` waits
_SHOWN_IDS: Final = 20


class Chunk:
    """Tasks that are pushed together."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self._bytes = self._values = 0

    def add(self, task: Task) -> bool:
        """Add one; return whether the chunk is full now."""
        self.tasks.append(task)
        body = task.encode()
        self._bytes += len(body)
        self._values += strict_json.most_values(body) + len(task.params or ())
        return len(self.tasks) >= CHUNK_TASKS or self._bytes >= CHUNK_BYTES or self._values >= CHUNK_VALUES


def chunks(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Divide tasks into chunks."""
    chunk = Chunk()
    for task in tasks:
        if chunk.add(task):
            yield chunk.tasks
            chunk = Chunk()
    if chunk.tasks:
        yield chunk.tasks


async def make_queue(backend: Backend, missing: QueueNotFound) -> bool:
    """Make a queue that is missing, or what is missing beside it; raises AccessDenied, which then also says what was.

    Returns:
        Whether it was the queue itself, as far as this identity may see.
    """
    is_there = False
    with contextlib.suppress(QueueNotFound, AccessDenied):
        await backend.stats()
        is_there = True
    try:
        await backend.create(exist_ok=True)
    except AccessDenied as error:
        error.add_note(str(missing))
        raise
    return not is_there


async def see_to_its_end(
    pushing: "asyncio.Future[Any]", finish_seconds: float = FINISH_SECONDS, take_back_seconds: float = TAKE_BACK_SECONDS
) -> None:
    """Wait, not for long, for what becomes of a push whose caller was cancelled; of one cut off nobody knows.

    Args:
        pushing: the push; done afterwards, unless nothing ends it.
        finish_seconds: for it to be answered; then it is cancelled.
        take_back_seconds: for it to end then.
    """
    import asyncio  # noqa: PLC0415 - short commands start without it

    for seconds in (finish_seconds, take_back_seconds):
        with contextlib.suppress(asyncio.CancelledError):  # cancelled again: on to the next step
            await asyncio.wait({pushing}, timeout=seconds)
        if pushing.done():
            break
        pushing.cancel()
    pushing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # later, nobody asks for it


def _is_cancelled() -> bool:
    """Return whether the caller was cancelled: a backend then says what it may have sent."""
    if is_at_once():
        return False
    import asyncio  # noqa: PLC0415 - as above

    pushing = asyncio.current_task()
    return pushing is not None and pushing.cancelling() > 0


async def signed(backend: Backend, tasks: Sequence[Task]) -> Sequence[Task]:
    """Return tasks as they go to a queue: signed, where the settings that it was opened with name a key."""
    signer = signer_of(backend)
    return tasks if signer is None or not tasks else await _signed(signer, tasks)


async def _signed(signer: Signer, tasks: Sequence[Task]) -> Sequence[Task]:
    if is_at_once():
        return signer.sign(tasks)
    import asyncio  # noqa: PLC0415 - as above

    return await asyncio.to_thread(signer.sign, tasks)


class Pusher:
    """Pushes to one queue, and knows at any time what is queued and what is in doubt.

    Args:
        backend: an entered backend; its tasks are signed where the settings that it was opened with name a key.
        creates: whether to make a missing queue, for which a mere sender has no right.
        on_created: called when it was made, not for what is missing beside a queue.
        on_acknowledged: given the tasks of each push.
        batch: to which all tasks belong; None = to what each says itself.

    Raises:
        ConfigurationError: the key that signs cannot be had.

    Attributes:
        count: how many tasks were acknowledged.
        known: how many of these the queue had before, as far as who pushes has looked.
        doubtful: ids of tasks of a cancelled push that may or may not be queued.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        creates: bool = True,
        on_created: Callable[[], None] = lambda: None,
        on_acknowledged: Callable[[Sequence[Task]], None] = lambda _tasks: None,
        batch: str | None = None,
    ) -> None:
        self.count = self.known = 0
        self.doubtful: tuple[str, ...] = ()
        self._backend = backend
        self._signer = signer_of(backend)
        self._creates = creates
        self._on_created = on_created
        self._on_acknowledged = on_acknowledged
        self._batch = batch
        self._begun = False

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Queue all tasks or none, and return their ids; raises as `Backend.push` does.

        Raises:
            ConfigurationError: they are of a batch, of which this queue knows nothing.
        """
        self._begun = False
        if self._batch is not None:
            tasks = [task.in_batch(self._batch) for task in tasks]
        if any(task.batch or task.params for task in tasks):
            check_batches(self._backend)
        if self._signer is not None:  # once: a repetition is of the same bytes
            tasks = await _signed(self._signer, tasks)
        try:
            ids = await self._push(tasks)
        except QueueNotFound as missing:
            if not self._creates:
                raise
            self._begun = False
            if await make_queue(self._backend, missing):
                self._on_created()
            ids = await self._push(tasks)
        self.count += len(ids)
        self._on_acknowledged(tasks)
        return ids

    async def push_to_its_end(self, tasks: Sequence[Task]) -> None:
        """As `push`; when it is cancelled, it first sees to the end what it has begun: see `count` and `doubtful`."""
        if is_at_once():  # nobody can cancel it
            await self.push(tasks)
            return
        import asyncio  # noqa: PLC0415 - as above

        pushing = asyncio.ensure_future(self.push(tasks))
        try:
            await asyncio.shield(pushing)
        except asyncio.CancelledError:
            await see_to_its_end(pushing)
            has_answer = pushing.done() and not pushing.cancelled()
            error = pushing.exception() if has_answer else None
            if isinstance(error, PushUnknown):
                self.doubtful = error.ids
            elif self._begun and (not has_answer or not isinstance(error, JobqError | None)):
                self.doubtful = tuple(task.id for task in tasks)  # not even what a backend has taken back is known
            raise

    async def push_all(self, tasks: Iterable[Task]) -> None:
        """Queue any number of tasks in chunks, each to its end; `count` says how far it came."""
        for chunk in chunks(tasks):
            await self.push_to_its_end(chunk)

    async def _push(self, tasks: Sequence[Task]) -> list[str]:
        clock = SystemClock()
        sent = clock.boottime()
        self._begun = True
        try:
            return await self._served(tasks)
        except PushUnknown as error:
            unknown = error
        if not _is_cancelled() and self._remembers(clock.boottime() - sent, tasks):
            try:
                return await self._backend.push(tasks)
            except PushUnknown as error:  # what the first may have queued, the second need not name
                unknown = PushUnknown(str(error), list(dict.fromkeys((*unknown.ids, *error.ids))))
            except JobqError as error:  # the repetition was not done: of the first nobody knows still
                unknown.add_note(f"asked again: {error}")
        unknown.add_note(self.doubt(unknown.ids))
        raise unknown

    async def _served(self, tasks: Sequence[Task]) -> list[str]:
        if is_at_once():  # nobody throttles there
            return await self._backend.push(tasks)
        from jobq.throttled import PUSH_SECONDS, until_served  # noqa: PLC0415 - as above

        return await until_served(lambda: self._backend.push(tasks), PUSH_SECONDS)

    def _remembers(self, seconds: float, tasks: Sequence[Task]) -> bool:
        """Return whether the service still knows an id that was pushed so long ago, and while it is pushed again."""
        if self._backend.capabilities.knows_batch_ids and all(task.batch for task in tasks):
            return True
        window = self._backend.capabilities.dedup_window
        is_safe = self._backend.capabilities.idempotent_push
        return is_safe and (window is None or seconds < window.total_seconds() / 2)

    def doubt(self, ids: Sequence[str]) -> str:
        """Return what to say of tasks that may or may not be queued."""
        shown = ", ".join(ids[:_SHOWN_IDS]) + (", ..." if len(ids) > _SHOWN_IDS else "")
        able = self._backend.capabilities
        if able.idempotent_push or (able.knows_batch_ids and self._batch is not None):
            advice = "pushing again with the same ids is safe, with new ones it may run them twice"
        else:
            advice = "pushing them again may run them twice; look with `jobq QUEUE peek` first"
        return f"in doubt: {len(ids)} task{'' if len(ids) == 1 else 's'} ({shown}); {advice}"

    async def check_done(self, walk: str) -> None:
        """Raise QueueNotFound for a walk that is done where the queue is gone, and what was queued with it.

        Args:
            walk: its name.
        """
        try:
            await self._backend.stats()
        except AccessDenied:  # then nobody here knows
            return
        except QueueNotFound as error:
            error.add_note(
                f"{walk} was done, and what it had queued is gone with the queue; to queue it again, use another name"
            )
            raise

    def summary(self) -> str:
        """Return how many tasks are queued, and which are in doubt."""
        new = self.count - self.known
        queued = f"queued {new} task{'' if new == 1 else 's'} on {self._backend.name}"
        if self.known:
            queued += f"; {self.known} {'was' if self.known == 1 else 'were'} there already, and nothing was changed"
        return f"{queued}; {self.doubt(self.doubtful)}" if self.doubtful else queued
