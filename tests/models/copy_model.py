"""Going back to a queue whose messages cannot be changed (Service Bus), over a broker that drops names it remembers.

A requeue and a release are a copy, sent under a name of its own, then the completion of the original
(`jobq_azure.service_bus.delivery`). In between the worker may die, the lock may run out, and the copy may arrive long
after its sender is gone. What must hold:

    S1  a task that has not ended has a message in the queue, or on its way there
    S3  no two starts of a task have one fencing number; looked at where `tokens` says so
    S7  starts <= 1 + retries + crashes that happened, as docs/guarantees.md says. `strict` asks for 1 + retries + the
        budget of crashes, which an original that runs beside its copy exceeds.

Copies are named by `jobq_azure.service_bus.message_format.copy_name`, by the original's sequence number, which no user
chooses; `naming` replaces that by what loses tasks, or starts them too often.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple, cast

from jobq_azure.service_bus.message_format import MessageFormat, copy_name

NAMINGS: Final = {
    "origin": "the original's sequence number and generation; as the code does",
    "life": "the sequence number of the message as which the task was pushed, and generation",
    "task": "the task's id alone",
    "generation": "the task's id and generation, joined by a colon",
    "none": "by nothing: the broker knows no names",
}


class Message(NamedTuple):
    """A message.

    Attributes:
        number: by the broker, in the order of arrival; 0 = it is on its way.
        name: by the sender.
        task: which one, as a place in the list of tasks.
        generation, failures, ends: as in the envelope.
        before: deliveries in messages before this one.
        taken: deliveries of this one.
        is_locked: by a worker, or by one that is gone.
        origin: number of the message as which the task was pushed; 0 = this one.
    """

    number: int
    name: str
    task: int
    generation: int = 0
    failures: int = 0
    ends: int = 0
    before: int = 0
    taken: int = 0
    is_locked: bool = False
    origin: int = 0

    @property
    def body(self) -> bytes:
        """The same of all: a name must be one by its numbers alone."""
        return b""


class Does(IntEnum):
    """What a worker does."""

    NOTHING = 0
    RUNS = 1
    REQUEUES = 2
    RELEASES = 3
    HAS_COPIED = 4


class Worker(NamedTuple):
    """A worker, the number of the message that it works on, and whether it has its lock still."""

    does: Does = Does.NOTHING
    number: int = 0
    holds: bool = False


_IDLE: Final = Worker()
_MOST_ENDS: Final = 2  # releases in this scope
_WITHOUT_LOCK: Final = (
    Does.REQUEUES,
    Does.RELEASES,
)  # the copy may be sent though the lock is gone; all else is refused


class State(NamedTuple):
    """Messages in the queue and on their way, names that the broker remembers, and what became of each task.

    Workers are alike, so they stand in order.
    """

    messages: tuple[Message, ...]
    late: tuple[Message, ...]
    names: frozenset[str]
    last_number: int
    to_push: int  # tasks that were not pushed yet
    ended: tuple[bool, ...]
    starts: tuple[int, ...]
    crashes: tuple[int, ...]
    workers: tuple[Worker, ...]
    tokens: frozenset[tuple[int, int, int]] = frozenset()  # task, generation, delivery of each start
    repeated: str = ""  # the first of them that was shown twice


class CopyModel:
    """Two workers and one queue.

    Args:
        naming: of copies, one of `NAMINGS`.
        ids: of the tasks, in the order of their pushes. One that stands twice is pushed again once the broker has
            forgotten the first push.
        retries, crashes: the budgets of each task.
        releases: whether a worker may give a task back unstarted.
        raises: whether such a copy is of the next generation, as one of a requeue is; as the code does.
        tokens: whether S3 is looked at.
        forgets: whether the broker's window may end for any name.
        strict: see above.
        late: copies on their way at once, at most.
        checks_starts: whether S7 is looked at.
    """

    def __init__(
        self,
        *,
        naming: str = "origin",
        ids: tuple[str, ...] = ("a",),
        retries: int = 1,
        crashes: int = 1,
        releases: bool = False,
        raises: bool = True,
        tokens: bool = False,
        forgets: bool = False,
        strict: bool = False,
        late: int = 1,
        checks_starts: bool = True,
    ) -> None:
        assert naming in NAMINGS
        self._naming, self._ids, self._retries, self._crashes = naming, ids, retries, crashes
        self._releases, self._forgets, self._strict, self._late = releases, forgets, strict, late
        self._checks_starts, self._raises, self._tokens = checks_starts, raises, tokens

    def first(self) -> State:
        """Nothing was pushed."""
        none = len(self._ids)
        return State((), (), frozenset(), 0, none, (False,) * none, (0,) * none, (0,) * none, (_IDLE,) * 2)

    def following(self, state: State) -> Iterable[tuple[str, State]]:
        """Return what producers, workers, the broker and the network may do."""
        task = len(self._ids) - state.to_push
        if state.to_push and self._ids[task] not in state.names:
            pushed = Message(0, self._ids[task], task)
            yield f"{self._ids[task]} is pushed", self._arrived(state._replace(to_push=state.to_push - 1), pushed)
        for worker in dict.fromkeys(state.workers):
            yield from self._acts(state, worker)
        for message in state.messages:
            if message.is_locked:
                crashes = self._counted(state.crashes, message.task)
                yield f"the lock on {_named(message)} runs out", _unlocked(state, message)._replace(crashes=crashes)
        for copy in dict.fromkeys(state.late):
            late = list(state.late)
            late.remove(copy)
            yield f"the copy {copy.name} arrives late", self._arrived(state._replace(late=tuple(late)), copy)
        if self._forgets:
            for name in sorted(state.names):
                yield f"the broker forgets {name}", state._replace(names=state.names - {name})

    def broken(self, state: State) -> str:
        """S1, S3 and S7."""
        if state.repeated:
            return f"S3: two starts show {state.repeated}"
        for task in range(len(self._ids) - state.to_push):
            if not state.ended[task] and not any(each.task == task for each in (*state.messages, *state.late)):
                return f"S1: task {self._ids[task]} of push {task + 1} is lost"
            most = 1 + self._retries + (self._crashes if self._strict else state.crashes[task])
            if state.starts[task] > most:
                return f"S7: {state.starts[task]} starts, {most} were allowed"
        return ""

    def told(self, state: State) -> str:
        """Return it in words."""
        parts = [f"{_named(each)}{' locked' if each.is_locked else ''}" for each in state.messages]
        parts += [f"{each.name} on its way" for each in state.late]
        parts += [
            f"a worker {each.does.name.lower().replace('_', ' ')} #{each.number}" for each in state.workers if each.does
        ]
        return "; ".join(parts) or "nothing"

    def _acts(self, state: State, worker: Worker) -> Iterator[tuple[str, State]]:
        if not worker.does:
            for message in state.messages:
                if not message.is_locked:
                    yield from self._taken(state, message)
            return
        original = next((each for each in state.messages if each.number == worker.number), None)
        idle = _changed(state, worker, _IDLE)
        yield f"the worker of #{worker.number} dies", idle
        if original is None:
            return
        match worker.does:
            case Does.RUNS:
                yield f"#{worker.number} succeeds", _ended(idle, original)
                if original.failures >= self._retries:
                    yield f"#{worker.number} fails for good", _ended(idle, original)
                else:  # a renewal comes first: who lost the lock before it sends no copy (S4)
                    yield f"#{worker.number} fails", _changed(state, worker, worker._replace(does=Does.REQUEUES))
            case Does.REQUEUES | Does.RELEASES:
                copy = self._copy(original, worker.does)
                sent = worker._replace(does=Does.HAS_COPIED) if worker.holds else _IDLE
                yield f"the copy {copy.name} is sent", self._arrived(_changed(state, worker, sent), copy)
                if len(state.late) < self._late:
                    late = idle._replace(late=tuple(sorted((*state.late, copy))))
                    yield f"the copy {copy.name} is late, and its sender dies", late
            case Does.HAS_COPIED:
                yield f"#{worker.number} is completed", _without(idle, original)

    def _taken(self, state: State, message: Message) -> Iterator[tuple[str, State]]:
        taken = message.taken + 1
        crashed = message.before + taken - 1 - message.ends  # as `jobq.run.attempt.retry.crashes_before`
        if crashed > self._crashes:
            yield f"{_named(message)} is buried: it crashed {crashed} times", _ended(state, message)
            return
        locked = _swapped(state, message._replace(taken=taken, is_locked=True))
        running = self._shown(_changed(locked, _IDLE, Worker(Does.RUNS, message.number, holds=True)), message)
        yield f"{_named(message)} starts", running._replace(starts=self._counted(state.starts, message.task))
        if self._releases and message.ends < _MOST_ENDS:
            yield (
                f"{_named(message)} is let go",
                _changed(locked, _IDLE, Worker(Does.RELEASES, message.number, holds=True)),
            )

    def _shown(self, state: State, message: Message) -> State:
        if not self._tokens:
            return state
        token = (message.task, message.generation, message.before + message.taken + 1)
        if token in state.tokens:
            return state._replace(repeated=f"0.{message.generation}.{token[-1]}")
        return state._replace(tokens=state.tokens | {token})

    def _copy(self, original: Message, does: Does) -> Message:
        failures = original.failures + (does is Does.REQUEUES)
        ends = original.ends + 1
        generation = original.generation + (self._raises or does is Does.REQUEUES)
        steps = (generation,) if generation > original.generation else (generation, ends)
        origin = original.origin or original.number
        match self._naming:
            case "task":
                name = f"{self._ids[original.task]}:copy"
            case "generation":
                name = ":".join(map(str, (self._ids[original.task], *steps)))
            case "life":
                name = copy_name(cast("MessageFormat", original._replace(number=origin)), *steps)
            case _:
                name = copy_name(cast("MessageFormat", original), *steps)  # which looks at its number, and at its body
        before = original.before + original.taken
        return Message(0, name, original.task, generation, failures, ends, before, origin=origin)

    def _arrived(self, state: State, message: Message) -> State:
        if message.name in state.names and self._naming != "none":
            return state  # dropped without a word
        number = state.last_number + 1
        messages = (*state.messages, message._replace(number=number))
        return state._replace(messages=messages, names=state.names | {message.name}, last_number=number)

    def _counted(self, counts: tuple[int, ...], task: int) -> tuple[int, ...]:
        return tuple(count + (place == task and self._checks_starts) for place, count in enumerate(counts))


def _named(message: Message) -> str:
    return f"#{message.number} {message.name}"


def _swapped(state: State, new: Message) -> State:
    return state._replace(messages=tuple(new if each.number == new.number else each for each in state.messages))


def _without(state: State, message: Message) -> State:
    rest = tuple(each for each in state.messages if each.number != message.number)
    return _unlocked(state, message)._replace(messages=rest)


def _ended(state: State, message: Message) -> State:
    ended = tuple(was or task == message.task for task, was in enumerate(state.ended))
    return _without(state, message)._replace(ended=ended)


def _unlocked(state: State, message: Message) -> State:
    """Return what follows when a lock ends: who worked under it is refused, unless a copy is about to be sent."""
    state = _swapped(state, message._replace(is_locked=False))
    for worker in state.workers:
        if worker.holds and worker.number == message.number:
            state = _changed(state, worker, worker._replace(holds=False) if worker.does in _WITHOUT_LOCK else _IDLE)
    return state


def _changed(state: State, old: Worker, new: Worker) -> State:
    workers = list(state.workers)
    workers[workers.index(old)] = new
    return state._replace(workers=tuple(sorted(workers)))
