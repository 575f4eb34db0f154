"""`push --batch`: begin a batch before its tasks, and seal it after them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from jobq.backend import Backend
from jobq.batch_plan import MOST_TEMPLATE_CHARACTERS, Plan, named_for_end
from jobq.batches import Batch, BatchState, batches_of
from jobq.cli.display import terminal
from jobq.cli.submit.create_queue import say_created
from jobq.errors import DuplicateTask
from jobq.formats.lazy_dataclass import dataclass
from jobq.submit.batch_end import begun
from jobq.submit.input_lines import TaskOptions
from jobq.submit.pusher import signed
from jobq.task import Task


@dataclass(frozen=True, kw_only=True)
class BatchPush:
    """What the options of one `push` say about its batch.

    Attributes:
        name: of the batch.
        template: what its tasks run, for people.
        then: what is queued, too, when they have ended.
        stays_open: whether it is left open for more.
        creates: whether to make a missing queue.
    """

    name: str
    template: str
    then: Sequence[Task]
    stays_open: bool
    creates: bool

    @classmethod
    def of(
        cls,
        name: str,
        template: str,
        then: Sequence[str],
        options: TaskOptions,
        *,
        stays_open: bool,
        creates: bool,
    ) -> Self:
        """Return what the options say; the commands that are run at its end have what all tasks of the push have."""
        tasks = [options.task(command=command, batch=None) for command in then]
        if len(template) > MOST_TEMPLATE_CHARACTERS:  # it is for people
            template = template[: MOST_TEMPLATE_CHARACTERS - 3] + "..."
        return cls(name=name, template=template, then=tasks, stays_open=stays_open, creates=creates)

    async def around(self, backend: Backend, push: Callable[[Batch | None], Awaitable[int]]) -> int:
        """Begin the batch, push, and seal it; return the exit code.

        Raises:
            ConfigurationError: this queue keeps no batches; nothing is queued.
            BatchSealed: it takes no more tasks; what the push says of that.
        """
        before = await self._begun(backend)
        try:
            if code := await push(before):
                return code
        except DuplicateTask as error:
            error.add_note(
                f"batch {self.name} holds what an earlier push has given it; take another name for other tasks"
            )
            raise
        after = before
        if not self.stays_open:
            after = await batches_of(backend).seal(self.name)
        terminal.say(_said(after, was_open=before.state is BatchState.OPEN))
        return 0

    async def _begun(self, backend: Backend) -> Batch:
        then = await signed(backend, named_for_end(self.name, self.then))
        bodies = tuple(task.encode().decode() for task in then)
        plan = Plan(template=self.template, then=bodies)
        return await begun(backend, self.name, plan, creates=self.creates, on_created=lambda: say_created(backend))


def _said(batch: Batch, *, was_open: bool) -> str:
    if batch.state is BatchState.OPEN:
        return f"batch {batch.name} stays open: push more to it, then `jobq QUEUE batch seal {batch.name}`"
    count = f"{batch.total} task{'' if batch.total == 1 else 's'}" if batch.counts else ""  # told to who may look
    if batch.state is BatchState.FINISHED:
        return f"batch {batch.name} has finished" + (f": {count}" if count else "")
    is_sealed = ("is sealed" if was_open else "was sealed before") + (f" with {count}" if count else "")
    return f"batch {batch.name} {is_sealed}; see how far it is: jobq QUEUE batch show {batch.name}"
