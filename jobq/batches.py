"""Batches: a named set of tasks of one queue, whose end is told once, and whose counts are counted.

A batch is open while tasks come, sealed when no more do, and has finished when it is sealed and each of its tasks has
ended. Putting a task of a finished one back makes it sealed again, in its next round; so does taking more in (reopen).
A cancel lasts until the batch has finished, or is reopened: what is put back before is canceled, too.

Nothing is counted beside the tasks: whoever ends one leaves a note of its batch in the same step, and what follows from
that (has the batch ended, what is to be run then) is found out afterwards, from the tasks themselves, by whoever comes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from enum import StrEnum
from typing import Any, Final, Protocol, Self, runtime_checkable

from jobq.batch_plan import Plan
from jobq.errors import BatchNotFound, BatchSealed, ConfigurationError, MalformedTask
from jobq.formats import task_ids
from jobq.formats.lazy_dataclass import dataclass

COUNTED: Final = ("ready", "scheduled", "running", "expired", "succeeded", "dead", "canceled", "gone")
UNFINISHED: Final = ("ready", "scheduled", "running", "expired")
MOST_LISTED: Final = 500  # batches, or members of one, of one call


class BatchState(StrEnum):
    """Where a batch is."""

    OPEN = "open"
    SEALED = "sealed"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class Round:
    """How a round of a batch ended.

    Attributes:
        number: from 1.
        finished: wall time in seconds since the epoch.
        counts: of its tasks then, by COUNTED.
    """

    number: int
    finished: float
    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch as it stands. Times are wall times in seconds since the epoch.

    Attributes:
        name: of the batch, one in its queue.
        state: see BatchState.
        round: which one it is in, from 1.
        is_canceled: whether it was canceled in this round.
        template: what its tasks run, for people.
        created: when it was begun.
        sealed: when it was sealed; None = it is open.
        finished: when this round finished; None = it has not.
        counts: of its tasks, by COUNTED: `gone` are those that were cleared, purged, or are forgotten. Empty where a
            service does not tell them: to who may push and not look, in the answer to what he has changed.
        rounds: those that have finished, the last ones, oldest first.
        rate: how many of its tasks ended in a second, of late (`pace`); None = that is not known, or not told: `find`
            alone tells it.
    """

    name: str
    state: BatchState
    round: int = 1
    is_canceled: bool = False
    template: str = ""
    created: float
    sealed: float | None = None
    finished: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    rounds: Sequence[Round] = ()
    rate: float | None = field(default=None, compare=False)

    @property
    def total(self) -> int:
        """How many tasks were pushed to it, where that is told."""
        return sum(self.counts.values())

    @property
    def unfinished(self) -> int:
        """How many of them have not ended."""
        return sum(self.counts.get(name, 0) for name in UNFINISHED)

    @property
    def is_to_be_finished(self) -> bool:
        """Whether nothing of it runs, each of its tasks has ended or is to be canceled, and nobody has seen to that."""
        left = self.counts.get("running", 0) if self.is_canceled else self.unfinished
        return self.state is BatchState.SEALED and not left

    @property
    def seconds_left(self) -> float | None:
        """About how long what is unfinished takes at this rate; None = nobody can say, as while more may come."""
        if self.state is not BatchState.SEALED or self.is_canceled or not self.rate or not self.unfinished:
            return None
        return self.unfinished / self.rate

    def as_fields(self) -> dict[str, Any]:
        """Return it as JSON has it, with the total."""
        return {**asdict(self), "total": self.total if self.counts else None}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return what `as_fields` gave."""
        held = {name: value for name, value in fields.items() if name in cls.__annotations__}  # a newer one adds some
        rounds = [
            Round(**{name: value for name, value in each.items() if name in Round.__annotations__})
            for each in held.pop("rounds", ())
        ]
        return cls(**{**held, "state": BatchState(held["state"]), "rounds": rounds})


@dataclass(frozen=True, kw_only=True)
class Member:
    """A task of a batch.

    Attributes:
        id: of the task.
        state: one of COUNTED but `gone`.
        params: as it was pushed with.
    """

    id: str
    state: str
    params: Mapping[str, str | int | float] = field(default_factory=dict)


class Batches(Protocol):
    """The batches of one queue. What every verb may raise is what the backend's own verbs raise.

    All but `begin` and `list` raise BatchNotFound.
    """

    async def begin(self, name: str, plan: Plan) -> Batch:
        """Open a batch, or say more of one that is open; return it as it is then, perhaps sealed or finished.

        Raises:
            ConfigurationError: the name can be none (`checked_name`).
            MalformedTask: the plan cannot be carried out (`Plan.checked`).
        """
        ...

    async def seal(self, name: str) -> Batch:
        """Let it take no more tasks; one that has none left has finished. Repeating it is safe."""
        ...

    async def reopen(self, name: str) -> Batch:
        """Let it take tasks again, in its next round if this one has finished. Repeating it is safe."""
        ...

    async def cancel(self, name: str) -> Batch:
        """Seal it, end what waits, and ask what runs to end; some hundreds a call: repeat it while some wait.

        Whoever does not repeat it leaves the rest to those who claim.
        """
        ...

    async def find(self, name: str) -> Batch:
        """Return it, counted, with its rate.

        One that has ended, and that nobody has finished (who ended the last task died), it finishes, where this user
        may write: else who only waits would wait for a worker. It is a read in all other cases.
        """
        ...

    async def list(self, after: str, limit: int, *, unfinished: bool = False) -> Sequence[Batch]:
        """Return up to `limit` batches in the store's order of names, from behind one; "" = the first; counted.

        Args:
            after: a name.
            limit: at most MOST_LISTED.
            unfinished: those alone that have not finished.
        """
        ...

    async def members(self, name: str, after: str, limit: int, state: str | None = None) -> Sequence[Member]:
        """Return up to `limit` of its tasks in the store's order of ids, from behind one; "" = the first.

        Args:
            name: of the batch.
            after: an id.
            limit: at most MOST_LISTED.
            state: `dead` = those alone.
        """
        ...


@runtime_checkable
class KeepsBatches(Protocol):
    """A backend whose queue keeps batches."""

    @property
    def batches(self) -> Batches:
        """The batches."""
        ...


def batches_of(backend: object) -> Batches:
    """Return a backend's batches.

    Raises:
        ConfigurationError: it keeps none; says which do.
    """
    check_batches(backend)
    assert isinstance(backend, KeepsBatches)
    return backend.batches


def check_batches(backend: Any) -> None:
    """Raise ConfigurationError for a backend that keeps no batches; says which do."""
    if not backend.capabilities.batches:
        raise ConfigurationError(
            f"the service of queue {backend.name!r} keeps no batches and no params: nothing is known of a task but that"
            " it waits or is dead; embedded, SQLite and PostgreSQL queues keep them, also over HTTP; a Storage Queue"
            " does where JOBQ_JOURNAL=tables is set for whoever pushes and works"
        )


def checked_name(name: str) -> str:
    """Return the name of a batch; raises ConfigurationError for what can be none."""
    if not task_ids.BATCH.fullmatch(name):
        raise ConfigurationError(
            f"{name[:80]!a} cannot name a batch: 1 to 64 letters, digits or ._- that begin with a letter or digit"
        )
    return name


def findable_name(name: str) -> str:
    """Return a name that a batch may have; raises BatchNotFound for what can be none, before a store is asked."""
    if not task_ids.BATCH.fullmatch(name):
        raise missing(name[:80])
    return name


def sealed(name: str, state: BatchState) -> BatchSealed:
    """Return what to say to who pushes to a batch that is not open."""
    is_so = "is sealed" if state is BatchState.SEALED else "has finished"
    return BatchSealed(
        f"batch {name!r} {is_so}, so none of these tasks was added; take another name, or `jobq QUEUE batch reopen"
        f" {name}` first"
    )


def check_too_late(name: str, state: BatchState, said: Plan, former: Plan) -> None:
    """Raise BatchSealed for a plan that says more of a batch than is known, which nobody would hear any more."""
    if state is not BatchState.OPEN and said.is_more_than(former):
        error = sealed(name, state)
        error.add_note("what is to be run at its end (--then) has to be said before")
        raise error


def missing(name: str) -> BatchNotFound:
    """Return what to say of a batch that is not there."""
    return BatchNotFound(
        f"there is no batch {name!r} in this queue; `jobq QUEUE push --batch {name}` begins one, `jobq QUEUE batch"
        " list` shows those there are"
    )


def counts_of(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by COUNTED, with zeros for what is not there."""
    return {name: counts.get(name, 0) for name in COUNTED}


PACE_SECONDS: Final = 3600.0  # how far back `pace` looks
PACE_TASKS: Final = 1000  # and how many ends at most: what is found is what a look may cost


def pace(count: int, seconds: float | None) -> float | None:
    """Return how many tasks ended in a second; None = too few did.

    Args:
        count: how many ended of late, within this round.
        seconds: how long ago the first of them did.
    """
    return None if seconds is None or count < 2 else (count - 1) / max(1.0, seconds)  # noqa: PLR2004 - one is no pace


MOST_ROUNDS: Final = 20  # kept of one batch


def rounds_with(text: str, number: int, finished: float, counts: Mapping[str, int]) -> str:
    """Return the rounds of a batch, as a store keeps them, once another one has finished; raises as `rounds_of`."""
    rounds_of(text)
    return json.dumps([*json.loads(text), [number, finished, [counts[name] for name in COUNTED]]][-MOST_ROUNDS:])


def rounds_of(text: str) -> list[Round]:
    """Return what `rounds_with` gave.

    Raises:
        MalformedTask: it is of another shape, as a newer jobq may keep it.
    """
    try:
        return [
            Round(number=number, finished=finished, counts=dict(zip(COUNTED, counts, strict=True)))
            for number, finished, counts in json.loads(text)
        ]
    except (ValueError, TypeError):
        raise MalformedTask("are kept in a form that this jobq does not know", "rounds") from None
