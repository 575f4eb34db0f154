"""Group commit: what is asked while one statement is under way goes to the server in the next, all in one."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from jobq.errors import JobqError
from jobq_postgres.errors import NoAnswer, RowRefused
from jobq_postgres.lane import Lane

P = TypeVar("P")
Unknown = Callable[[str], JobqError]
_MOST: Final = 500  # bounds how long one statement takes


@dataclass(slots=True, eq=False)
class _Operation(Generic[P]):
    payload: P
    seconds: float
    unknown: Unknown
    answer: "asyncio.Future[Any]"


class Group(Generic[P]):
    """Collects operations of one kind for a lane.

    Args:
        lane: runs them.
        execute: does many at once, in one transaction; returns a value or an error for each.
        key: two operations with the same key are not put into one statement; None = any two may be.
        early: goes before what waits on the lane.
        gives_up: drop the connection when nobody waits for any of a batch any more.
    """

    def __init__(
        self,
        lane: Lane,
        execute: Callable[[Any, Sequence[P]], Awaitable[Sequence[object]]],
        *,
        key: Callable[[P], Hashable] | None = None,
        early: bool = False,
        gives_up: bool = False,
    ) -> None:
        self._lane = lane
        self._execute = execute
        self._key = key
        self._early = early
        self._gives_up = gives_up
        self._waiting: list[_Operation[P]] = []
        self._handed_in = False

    def submit(self, payload: P, *, seconds: float, unknown: Unknown) -> "asyncio.Future[Any]":
        """Hand in one operation.

        Args:
            payload: for `execute`.
            seconds: how long the statement may take.
            unknown: makes the error for an answer that was lost.

        Returns:
            A future with what `execute` answers, or a JobqError.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Operation(payload, seconds, unknown, answer))
        self._hand_in()
        return answer

    def _hand_in(self) -> None:
        if self._handed_in or not self._waiting:
            return
        self._handed_in = True
        batch: list[_Operation[P]] = []

        async def work(connection: Any) -> Sequence[object]:
            self._handed_in = False
            batch.extend(self._take())
            self._hand_in()  # what did not fit, or has the same key, follows
            if not batch:
                return []
            if self._gives_up:
                for operation in batch:
                    operation.answer.add_done_callback(lambda _: self._give_up(batch, done))
            return await self._execute(connection, [operation.payload for operation in batch])

        done = self._lane.submit(work, seconds=self._waiting[0].seconds, early=self._early, gives_up=self._gives_up)
        done.add_done_callback(lambda done: self._answer_all(batch, done))

    def _give_up(self, batch: "list[_Operation[P]]", done: "asyncio.Future[Any]") -> None:
        if not done.done() and all(operation.answer.cancelled() for operation in batch):
            done.cancel()

    def _take(self) -> "list[_Operation[P]]":
        taken: list[_Operation[P]] = []
        left: list[_Operation[P]] = []
        keys: set[Hashable] = set()
        for operation in self._waiting:
            key = self._key(operation.payload) if self._key is not None else None
            if operation.answer.done():
                continue  # given up before it was sent
            if len(taken) >= _MOST or (key is not None and key in keys):
                left.append(operation)
                continue
            keys.add(key)
            taken.append(operation)
        self._waiting = left
        return taken

    def _answer_all(self, batch: "list[_Operation[P]]", done: "asyncio.Future[Sequence[object]]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None and not batch:  # there is no connection: nothing of what waits was sent
            self._handed_in = False
            batch.extend(self._take())
        if isinstance(error, RowRefused) and len(batch) > 1:
            for operation in batch:
                self._alone(operation)
            return
        answers: Sequence[object] = done.result() if error is None else [error] * len(batch)
        for operation, answer in zip(batch, answers, strict=True):
            self._answer(operation, answer)

    def _alone(self, operation: "_Operation[P]") -> None:
        async def work(connection: Any) -> Sequence[object]:
            return await self._execute(connection, [operation.payload])

        done = self._lane.submit(work, seconds=operation.seconds, early=self._early)
        done.add_done_callback(lambda done: self._answer_all([operation], done))

    def _answer(self, operation: "_Operation[P]", answer: object) -> None:
        if operation.answer.done():
            return
        if isinstance(answer, NoAnswer):
            operation.answer.set_exception(operation.unknown(str(answer)))
        elif isinstance(answer, BaseException):
            operation.answer.set_exception(answer)
        else:
            operation.answer.set_result(answer)
