"""One way through the dead letters of a queue: some are meant, and whatever stands before them is locked on the way."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from jobq.batch_ids import is_meant, key_of
from jobq.errors import MalformedTask
from jobq.task import Task
from jobq_azure.common.letter_work import work_in
from jobq_azure.service_bus.message_format import REDRIVEN, id_in, origin_of

if TYPE_CHECKING:
    from jobq_azure.service_bus.seen import Seen

_MOST_TIMES: Final = 3  # that letters are locked on the average: locks that run out bring them again
Origin = tuple[str, str, str]  # a task's id, the message as which it was pushed, and its work
Group = list["Seen"]  # the locked letters of one task, the newest first


class Known(NamedTuple):
    """What is remembered of a letter that was looked at."""

    number: int
    origin: Origin
    age: tuple[int, int, int]


class Walk:
    """One way through the sub-queue: what is meant, what is locked, what is done.

    Args:
        letters: all of them, in the order in which they can be locked.
        ids: of the tasks that are meant.
    """

    def __init__(self, letters: Sequence[Known], ids: Collection[str]) -> None:
        wanted = dict[str, list[str]]()
        for id_ in ids:
            wanted.setdefault(id_, []).append(id_)
        self.left = {
            each.origin for each in letters if any(_means(id_, each.origin) for id_ in wanted.get(each.origin[0], ()))
        }
        self.finished: set[Origin] = set()
        self._given_up: set[Origin] = set()
        newest: dict[Origin, Known] = {}
        for each in letters:
            if each.origin in self.left:
                newest[each.origin] = max(each, newest.get(each.origin, each), key=lambda one: one.age)
        self._newest = {origin: each.number for origin, each in newest.items()}
        # How many are to be locked until the last that is meant is among them.
        self._ahead = max((place for place, each in enumerate(letters, 1) if each.origin in self.left), default=0)
        self._met: set[int] = set()
        self._most = _MOST_TIMES * (len(letters) + _MOST_TIMES)
        self._mine: dict[Origin, dict[int, Seen]] = {}
        self._others: dict[int, UUID] = {}

    def next_count(self, most: int) -> int:
        """Return how many to lock next: no more than are in the way."""
        left = self._ahead - len(self._met)
        return min(most, left) if left > 0 else most

    def take(self, found: Sequence["Seen"]) -> bool:
        """Take in what was locked; return whether the walk comes on: by a new letter, or the newest of a task."""
        is_new = False
        self._most -= len(found)
        for seen in found:
            origin = known(seen).origin
            is_new = is_new or seen.number not in self._met or self._newest.get(origin) == seen.number
            self._met.add(seen.number)
            if origin in self._newest:
                self._mine.setdefault(origin, {})[seen.number] = seen
            else:
                self._others[seen.number] = token(seen)
        return is_new and self._most >= 0

    def ready(self) -> list[Group]:
        """Return the groups of which the newest letter is locked."""
        return [
            sorted(held.values(), key=age, reverse=True)
            for origin, held in self._mine.items()
            if origin in self.left and self._newest[origin] in held
        ]

    def done(self, groups: Sequence[Group]) -> None:
        """Note what was done."""
        for group in groups:
            origin = known(group[0]).origin
            self.left.discard(origin)
            self.finished.add(origin)
            del self._mine[origin]

    def give_up(self, groups: Sequence[Group]) -> None:
        """Note what stays as it is."""
        self._given_up |= {known(group[0]).origin for group in groups}
        self.left -= self._given_up

    def late(self) -> list[Group]:
        """Return locked letters of tasks that are done: older ones, which came behind the newest."""
        return [list(self._mine.pop(origin).values()) for origin in list(self._mine) if origin in self.finished]

    def ids(self, ids: Collection[str]) -> list[str]:
        """Return those of these ids that are done: of each letter that they mean."""
        found = list[str]()
        done, left = _by_id(self.finished), _by_id(self.left | self._given_up)
        for id_ in {key_of(each): each for each in ids}.values():
            is_left = any(_means(id_, each) for each in left.get(id_, ()))
            if not is_left and any(_means(id_, each) for each in done.get(id_, ())):
                found.append(id_)
        return found

    def held(self) -> list[UUID]:
        """Return the locks that nobody needs any more."""
        mine = [token(seen) for held in self._mine.values() for seen in held.values()]
        return mine + list(self._others.values())


def known(seen: "Seen") -> Known:
    """Return what is remembered of it."""
    origin = (id_in(seen), origin_of(seen, REDRIVEN), work_in(seen.body))
    return Known(seen.number, origin, age(seen))


def _means(id_: str, origin: Origin) -> bool:
    return id_ == origin[0] and is_meant(id_, None, origin[2])


def _by_id(origins: Iterable[Origin]) -> dict[str, list[Origin]]:
    found = dict[str, list[Origin]]()
    for each in origins:
        found.setdefault(each[0], []).append(each)
    return found


def token(seen: "Seen") -> UUID:
    """Return the lock of a letter that was locked."""
    assert seen.token is not None, "it was locked"
    return seen.token


def age(seen: "Seen") -> tuple[int, int, int]:
    """Return what rises among the letters of one task."""
    try:
        task = Task.decode(seen.body)
    except MalformedTask:
        return 0, 0, seen.number
    return task.epoch, task.generation, seen.number
