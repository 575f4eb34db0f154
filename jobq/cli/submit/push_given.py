"""`push` of given tasks, what each push prints of its ids, and what each is told by its options."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from jobq.backend import Backend
from jobq.cli.common import with_queue
from jobq.cli.display import terminal
from jobq.cli.interrupts import Interrupted, is_cancellation
from jobq.cli.submit.already_there import known_ids, still_known
from jobq.cli.submit.create_queue import say_created
from jobq.cli.submit.push_options import check_names, check_priority
from jobq.errors import JobqError
from jobq.formats.lazy_dataclass import dataclass
from jobq.submit.pusher import Pusher
from jobq.task import Task

if TYPE_CHECKING:
    from jobq.batches import Batch
    from jobq.cli.submit.batch_push import BatchPush
    from jobq.settings import Settings
    from jobq.submit.input_lines import TaskOptions


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


@dataclass(kw_only=True)
class HowToPush:
    """What the options of one `push` say, wherever its tasks come from.

    Attributes:
        ctx: of the command.
        settings: its settings.
        template: what all tasks have.
        echo: what is printed, and whether the end is waited for.
        creates: whether to make a missing queue.
        names: the option that names tasks; None = none does.
        batch: the batch that they belong to.
    """

    ctx: click.Context
    settings: "Settings"
    template: "TaskOptions"
    echo: Echo
    creates: bool
    names: str | None
    batch: "BatchPush | None" = None
    _has_warned: bool = False

    def pusher(self, backend: Backend) -> Pusher:
        """Return what pushes to a queue, prints ids, and says that it made it."""
        return Pusher(
            backend,
            creates=self.creates,
            on_created=lambda: say_created(backend),
            on_acknowledged=lambda tasks: self._acknowledged(backend, tasks),
            batch=None if self.batch is None else self.batch.name,
        )

    def _acknowledged(self, backend: Backend, tasks: Sequence[Task]) -> None:
        """Print the ids, and say once what tasks that ask for something cost where the queue does not select."""
        self.echo.acknowledged([task.id for task in tasks])
        if self._has_warned or backend.capabilities.selects:
            return
        if any(task.resources is not None or task.needs is not None for task in tasks):
            self._has_warned = True
            terminal.warn(
                f"{backend.name} hands out the oldest task, whatever that asks for, and workers that cannot run it put"
                " it back for a while: push tasks that ask for different things to different queues, each with its own"
                " workers, see `jobq help resources`"
            )

    def connected(self, push: Callable[[Backend], Awaitable[int]], **more: bool) -> int:
        """Connect to the queue, push, and wait if that is wanted; return the exit code. More: as `with_queue`."""
        return with_queue(self.ctx, lambda backend: self.awaited(backend, push), self.settings, **more)

    async def awaited(self, backend: Backend, push: Callable[[Backend], Awaitable[int]]) -> int:
        """Push, and wait if that is wanted; return the exit code."""
        check_priority(backend, self.template.priority)
        check_names(backend, self.names, in_batch=self.batch is not None)
        echo = self.echo
        if echo.kept is None:
            return await self.in_batch(backend, lambda _: push(backend))
        from jobq.cli.submit.wait_for_results import check_journal, left, wait_for  # noqa: PLC0415 - most do not wait

        await check_journal(backend)
        try:
            if code := await self.in_batch(backend, lambda _: push(backend)):
                return code
        except Interrupted as interrupted:  # it may come between the last acknowledgement and the wait
            if not (queued := len(echo.kept)):
                raise
            raise Interrupted(f"{interrupted}; {left(queued, queued)}", interrupted.ids) from None
        return await wait_for(backend, echo.kept, as_json=echo.as_json, timeout=echo.wait_timeout)

    async def in_batch(self, backend: Backend, push: "Callable[[Batch | None], Awaitable[int]]") -> int:
        """Push, in its batch where there is one, which `push` is given; return the exit code."""
        return await push(None) if self.batch is None else await self.batch.around(backend, push)


def named_tasks(
    template: "TaskOptions", given: Sequence[Mapping[str, Any]], id_: str | None, batch: str | None
) -> list[Task]:
    """Return tasks of given fields: under an id, or that of their place in the batch that is all theirs."""
    if id_ is not None:
        return [template.task(**fields, id=id_) for fields in given]
    named = [{} if batch is None else {"id": f"{batch}.{place}"} for place in range(len(given))]
    return [template.task(**fields, **name) for fields, name in zip(given, named, strict=True)]


def push_given(how: HowToPush, tasks: list[Task]) -> int:
    """Queue tasks that came from the command line; return the exit code."""

    async def push(backend: Backend) -> int:
        pusher = how.pusher(backend)
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
        pusher.known += await still_known(backend, known)
        terminal.say(pusher.summary())
        return 0

    return how.connected(push, interruptible=True, brief=how.echo.kept is None)
