"""What who begins a batch says of it: what is run when a round of it has finished."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final, Self

from jobq.errors import MalformedTask
from jobq.formats import task_fields
from jobq.formats.lazy_dataclass import dataclass
from jobq.task import MAX_BODY_BYTES, Task

MOST_TEMPLATE_CHARACTERS: Final = 4096
MOST_THEN: Final = 16  # tasks, and as many bytes together as one task may have: each look at the batch reads them
_THEN: Final = "jobq.then"
_UNREADABLE: Final = "is kept in a form that this jobq does not know; a newer one has begun the batch"
MOST_ROUND: Final = 10**9 - 1  # as many as a message has room for (wire_v3)
_FIRST_OTHER: Final = 10**6  # more than a batch has rounds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What who begins a batch says of it.

    Attributes:
        template: what its tasks run, for people.
        then: bodies of tasks that are added to the queue, not to the batch, when a round of it has finished.
    """

    template: str = ""
    then: tuple[str, ...] = ()

    def encode(self) -> str:
        """Return it as ASCII text, for a store."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return what `encode` gave; what a newer jobq has added is left out.

        Raises:
            MalformedTask: it is of another shape, as a newer jobq may keep it.
        """
        try:
            fields = json.loads(text)
            template, then = fields.get("template", ""), fields.get("then", [])
        except (ValueError, AttributeError):
            raise MalformedTask(_UNREADABLE, "plan") from None
        if not isinstance(template, str) or not _are_texts(then):
            raise MalformedTask(_UNREADABLE, "plan")
        return cls(template=template, then=tuple(then))

    def with_later(self, later: "Plan") -> "Plan":
        """Return the plan of a batch that somebody else has begun, once a later one has said more.

        Raises:
            MalformedTask: what is to be run then cannot be united: it was signed, or is too much.
        """
        known = {_content(body) for body in self.then}
        more = [body for body in later.then if _content(body) not in known]
        if more and self.then and any(Task.decode(body.encode()).work for body in (*self.then, *more)):
            raise MalformedTask("was signed as another push has: say with one push what is to be run then", "then")
        then = (*self.then, *more)
        if len(then) > MOST_THEN or sum(map(len, then)) > MAX_BODY_BYTES:
            raise MalformedTask("is more than is kept, with what others have said", "then")
        return Plan(template=later.template or self.template, then=then)

    def is_more_than(self, former: "Plan") -> bool:
        """Return whether something is to be run of which a former plan knows nothing."""
        known = {_content(body) for body in former.then}
        return any(_content(body) not in known for body in self.then)

    def tasks(self, name: str, number: int) -> list[Task]:
        """Return the tasks that are added when a round has finished, always the same ids for the same round.

        Where an id of these is known (anybody may push one), the task is added `under_another_id`, in the same step.
        """
        return [_then(body, name, number, place) for place, body in enumerate(self.then)]

    def checked(self, name: str) -> Self:
        """Return the plan itself, of a batch of this name, if what it says can be kept, and queued as a pushed task is.

        For whoever takes a plan in: what cannot be queued would be met when a round has finished, by nobody who could
        do anything about it.

        Raises:
            MalformedTask: says what is wrong, and where.
        """
        try:
            task_fields.text(self.template)
        except ValueError as error:
            raise MalformedTask(str(error), "template") from None
        if len(self.template) > MOST_TEMPLATE_CHARACTERS:
            raise MalformedTask(
                f"has {len(self.template)} characters, and is for people, who read {MOST_TEMPLATE_CHARACTERS} at most",
                "template",
            )
        if len(self.then) > MOST_THEN:
            raise MalformedTask(f"has {len(self.then)} tasks, at most {MOST_THEN} are added at an end", "then")
        size = sum(len(body.encode("utf-8", "surrogatepass")) for body in self.then)
        if size > MAX_BODY_BYTES:
            raise MalformedTask(f"its tasks have {size} bytes together, at most {MAX_BODY_BYTES} are kept", "then")
        for place, body in enumerate(self.then):
            try:
                _then(body, name, MOST_ROUND, place).checked()
            except MalformedTask as error:
                raise MalformedTask(error.what, f"then.{place}" + (f".{error.where}" if error.where else "")) from None
        return self


def _content(body: str) -> bytes:
    """Return what a task runs, whatever its id and the time are."""
    return Task.decode(body.encode("utf-8", "surrogatepass")).fingerprint()


def under_another_id(task: Task) -> Task:
    """Return a task of `Plan.tasks` under an id that nobody can have taken beforehand; it counts as the same work (A1).

    As that of another round, at random, for what a producer has signed is run under no others.
    """
    number = _FIRST_OTHER + int.from_bytes(os.urandom(8), "big") % (MOST_ROUND - _FIRST_OTHER)
    base, _, _ = task.id.rpartition(".")
    work = task.work and replace(task.work, round=number)
    return task.copied({"id": f"{base}.{number}", "work": work})


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _then(body: str, name: str, number: int, place: int) -> Task:
    task, base = Task.decode(body.encode("utf-8", "surrogatepass")), _base(name, place)
    if task.work is not None and task.work.id != base:  # what a producer has signed stays as it is
        raise MalformedTask(f"is not {base}, as which it had to be signed", "work.id")
    work = task.work and replace(task.work, round=number)
    return task.copied({"id": f"{base}.{number}", "work": work})


def _base(name: str, place: int) -> str:
    return f"{_THEN}.{name}" + (f":{place}" if place else "")  # no name of a batch holds a colon


def named_for_end(name: str, tasks: Sequence[Task]) -> list[Task]:
    """Return tasks that are to be run at the end of each round of a batch, as they have to be named to be signed."""
    return [task.copied({"id": _base(name, place)}) for place, task in enumerate(tasks)]
