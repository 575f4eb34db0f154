"""Settles in groups: what is asked while requests are under way goes with the next one, all in one request.

Each settle has an answer of its own; a request without an answer leaves all of its settles unknown (S5).
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from jobq.errors import ConfigurationError, JobqError, MalformedTask, SettlementUnknown
from jobq_http.connection import HttpConnection, NoAnswer, check

_MOST: Final = 200
_MOST_BYTES: Final = 4 * 1024 * 1024
_AT_ONCE: Final = 2  # requests: one that hangs holds the others up only so far


@dataclass(slots=True, eq=False)
class _Settle:
    item: bytes
    seconds: float
    answer: "asyncio.Future[None]"


class SettleBatcher:
    """The settles of one queue.

    Args:
        connection: to the service.
        queue: the queue's name.
    """

    def __init__(self, connection: HttpConnection, queue: str) -> None:
        self._connection = connection
        self._query = {"queue": queue}
        self._waiting: list[_Settle] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def send(self, item: bytes, seconds: float) -> None:
        """Send one.

        Args:
            item: its JSON.
            seconds: how long the answer may take.

        Raises:
            LockLost, SettlementUnknown, BackendUnavailable: as the verbs of a delivery.
        """
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Settle(item, seconds, answer))
        # After whatever else is ready to run now: those that settle at the same time go together.
        asyncio.get_running_loop().call_soon(self._begin)
        await answer

    async def close(self) -> None:
        """Return once all are answered."""
        while self._sending:
            await asyncio.wait(self._sending)

    def _begin(self) -> None:
        if not self._waiting or len(self._sending) >= _AT_ONCE:
            return
        batch: list[_Settle] = []
        size = 0
        while self._waiting and len(batch) < _MOST and size < _MOST_BYTES:
            settle = self._waiting.pop(0)
            if not settle.answer.done():  # else given up before it was sent
                batch.append(settle)
                size += len(settle.item)
        if batch:
            sending = asyncio.create_task(self._send(batch), name=f"settle {len(batch)} tasks")
            self._sending.add(sending)
            sending.add_done_callback(self._done)

    def _done(self, sending: "asyncio.Task[None]") -> None:
        self._sending.discard(sending)
        self._begin()

    async def _send(self, batch: list[_Settle]) -> None:
        answers: list[Any] = [SettlementUnknown("the settle was interrupted")] * len(batch)
        try:
            answers = await self._answers(batch)
        except NoAnswer as error:
            answers = [SettlementUnknown(str(error))] * len(batch)
        except JobqError as error:
            answers = [error] * len(batch)
            is_content = isinstance(error, MalformedTask) or type(error) is ConfigurationError
            if is_content and (half := len(batch) // 2) > 0:  # nothing was done; the others do not pay for one of them
                await self._send(batch[:half])
                await self._send(batch[half:])
        finally:
            for settle, found in zip(batch, answers, strict=True):
                self._answer(settle, found)

    async def _answers(self, batch: list[_Settle]) -> list[Any]:
        body = b'{"settles":[' + b",".join(settle.item for settle in batch) + b"]}"
        seconds = max(settle.seconds for settle in batch)
        answer = await self._connection.request("POST", "/api/tasks/settle", body, query=self._query, seconds=seconds)
        answers: list[Any] = answer["answers"]
        if len(answers) != len(batch):
            raise NoAnswer(f"{len(answers)} answers to {len(batch)} settles")
        return answers

    def _answer(self, settle: _Settle, found: Any) -> None:
        if settle.answer.done():
            return
        try:
            if isinstance(found, JobqError):
                raise found
            check(self._connection.url, found)
        except NoAnswer as error:
            settle.answer.set_exception(SettlementUnknown(str(error)))
        except JobqError as error:
            settle.answer.set_exception(error)
        else:
            settle.answer.set_result(None)
