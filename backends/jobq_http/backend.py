"""A queue of a jobq service behind the backend protocol. The service decides, and its clock is the only one."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from jobq.backend import Capabilities, DeadLetter, Delivery, Hastened, Peeked, QueueStats
from jobq.clearing import Cleared, clear_in_steps
from jobq.errors import MalformedTask, PushUnknown
from jobq.formats import strict_json
from jobq.formats.wire_v3 import BOOKKEEPING
from jobq.journal.wire import body_of
from jobq.pausing import Pause
from jobq.resources.request import Resources
from jobq.resources.room import ResourceRequest, Room
from jobq.selecting import WaitingShape
from jobq.servable import MOST_PEEKED, Rights, all_pages
from jobq.task import Task
from jobq_http.batches import HttpBatches
from jobq_http.claims import HttpClaims, mark_in
from jobq_http.connection import HttpConnection, NoAnswer, unavailable
from jobq_http.journal import HttpJournal
from jobq_http.leases import HttpLeases
from jobq_http.settle_batcher import SettleBatcher

if TYPE_CHECKING:
    from jobq_http.observations import HttpObservations
    from jobq_http.views import HttpViews

_SECONDS: Final = 30.0
_CLEAR_SECONDS: Final = 60.0
_PUSH_SECONDS_PER_TASK: Final = 0.002
_MOST_TASKS: Final = 10_000
_MOST_PUSH_BYTES: Final = 15 * 1024 * 1024


class HttpBackend:
    """One queue of a service.

    Args:
        connection: to the service.
        name: the queue's name.
    """

    def __init__(self, connection: HttpConnection, name: str) -> None:
        self.name = name
        self._connection = connection
        self._settles = SettleBatcher(connection, name)
        self._query = {"queue": name}
        self._claims = HttpClaims(connection, self._settles, name)

    @property
    def capabilities(self) -> Capabilities:
        """What an SQL backend can do; whether it selects is known from the first answer on, and assumed until then."""
        return self._claims.capabilities

    @property
    def leases(self) -> HttpLeases:
        """The named leases of this queue."""
        return HttpLeases(self._connection, self.name)

    @property
    def journal(self) -> HttpJournal:
        """What the service's store knows of its tasks."""
        return HttpJournal(self._ask)

    @property
    def batches(self) -> HttpBatches:
        """The batches of this queue, which the service's store keeps."""
        return HttpBatches(self._ask)

    def observations(self, queue: str = "") -> "HttpObservations":
        """Return the notes of a queue of the service; where it keeps none, it takes them and drops them."""
        from jobq_http.observations import HttpObservations  # noqa: PLC0415 - few need them, and a worker later

        return HttpObservations(self._connection, queue or self.name)

    def views(self) -> "HttpViews":
        """Return what looks at all queues of the service that the token may see."""
        from jobq_http.views import HttpViews  # noqa: PLC0415 - few need them

        return HttpViews(self._connection.another())

    async def queues(self) -> list[str]:
        """Return the names of all queues of the service that the token may watch."""
        try:
            answer = await self._connection.request("GET", "/api/queues", seconds=_SECONDS)
        except NoAnswer as error:
            raise unavailable(error) from None
        return [str(each) for each in answer["queues"]]

    async def rights(self) -> Rights:
        """Ask what the token permits."""
        try:
            answer = await self._connection.request("GET", "/api/token", seconds=_SECONDS)
        except NoAnswer as error:
            raise unavailable(error) from None
        id_, name = str(answer["id"]), str(answer["name"])
        return Rights(id=id_, name=name, scopes=tuple(answer["scopes"]), queues=tuple(answer["queues"]))

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._claims.give_back()
        await self._settles.close()
        await self._connection.__aexit__(None, None, None)

    async def create(self, *, exist_ok: bool = True) -> None:
        """Make the queue; raises ConfigurationError unless `exist_ok`."""
        await self._ask("PUT", "", query={"exist_ok": "true" if exist_ok else "false"})

    async def push(self, tasks: Sequence[Task]) -> list[str]:
        """Add all in one request; its ids make a repetition safe (S8)."""
        ids = [task.id for task in tasks]
        if not tasks:
            return ids
        body = b'{"tasks":[' + b",".join(map(_pushed, tasks)) + b"]}"
        if len(tasks) > _MOST_TASKS or len(body) > _MOST_PUSH_BYTES:
            raise MalformedTask(
                f"{len(tasks)} tasks of {len(body)} bytes are too much for one request; push at most {_MOST_TASKS}"
                f" tasks and {_MOST_PUSH_BYTES // 2**20} MiB at a time"
            )
        seconds = _SECONDS + len(tasks) * _PUSH_SECONDS_PER_TASK
        try:
            await self._connection.request("POST", "/api/tasks", body, query=self._query, seconds=seconds)
        except NoAnswer as error:
            raise PushUnknown(str(error), ids) from None
        return ids

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        """Claim up to `max_tasks` by long polls; a claim whose answer was lost is asked for by the next one."""
        return await self._claims.receive(max_tasks, lease, wait)

    async def receive_fitting(
        self,
        room: Room,
        max_tasks: int,
        lease: timedelta | None,
        wait: timedelta,
        *,
        worker_id: str = "",  # noqa: ARG002 - those who use a service are on many machines
    ) -> list[Delivery]:
        """Claim what there is room for, where the service selects; else what comes first."""
        return await self._claims.receive(max_tasks, lease, wait, room)

    async def peek(self, limit: int) -> list[Peeked]:
        """Look at what could be received now."""
        found: list[Peeked] = []
        after: str | None = "0"
        while after is not None and limit > len(found):
            query = {"limit": str(min(limit - len(found), MOST_PEEKED)), "after": after}
            answer = await self._ask("GET", "/peek", query=query)
            found += [
                Peeked(id=each["id"], body=body_of(each), deliveries=each["deliveries"]) for each in answer["tasks"]
            ]
            after = answer["next"]
        return found

    async def stats(self) -> QueueStats:
        """Count all four."""
        found = await self._ask("GET", "")
        counts = {name: found[name] for name in ("visible", "leased", "scheduled", "dead")}
        return QueueStats(**counts, paused=mark_in(found))

    async def waiting_shapes(self) -> list[WaitingShape]:
        """Count what waits by what it asks for."""
        return [
            WaitingShape(
                request=ResourceRequest(
                    None if each["resources"] is None else Resources(each["resources"]),
                    None if each["needs"] is None else tuple(each["needs"]),
                ),
                count=each["count"],
            )
            for each in (await self._ask("GET", "/shapes"))["shapes"]
        ]

    async def pause(self, mark: Pause) -> None:
        """Have the service hand nothing out."""
        await self._ask("PUT", "/pause", {"by": mark.by, "reason": mark.reason})

    async def resume(self) -> Pause | None:
        """Have it hand tasks out again."""
        return mark_in(await self._ask("DELETE", "/pause"))

    async def paused(self) -> Pause | None:
        """Return the mark that the last claim has met: a token that may claim need not be one that may count."""
        return self._claims.paused

    async def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        """Have the service let tasks that are put off be due now."""
        return [Hastened(each) for each in await self._tend("/hasten", ids, "hastened")]

    async def clear(self) -> int:
        """Delete what waits or is leased."""
        return (await clear_in_steps(self)).deleted

    async def clear_some(self, cursor: str) -> Cleared:
        """Have the service do it for some seconds."""
        answer = await self._ask("POST", "/clear", query={"cursor": cursor}, seconds=_CLEAR_SECONDS)
        return Cleared(int(answer["cleared"]), answer.get("cursor"))

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Look at the dead letters, oldest first, in as many requests as that takes."""
        return await all_pages(self._dead_page, limit)

    async def _dead_page(self, after: str, limit: int) -> tuple[list[DeadLetter], str | None]:
        query = {"limit": str(min(limit, MOST_PEEKED))} | ({"after": after} if after else {})
        answer = await self._ask("GET", "/dead-letters", query=query)
        return _letters(answer), answer.get("next")

    async def redrive(self, ids: Sequence[str]) -> list[str]:
        """Put dead letters back."""
        return await self._tend("/redrive", ids)

    async def purge_dead(self, ids: Sequence[str]) -> list[str]:
        """Delete dead letters for good."""
        return await self._tend("/purge", ids)

    async def _tend(self, verb: str, ids: Sequence[str], answered: str = "ids") -> list[str]:
        found: list[str] = []
        for start in range(0, len(ids), _MOST_TASKS):
            answer = await self._ask("POST", verb, {"ids": list(ids[start : start + _MOST_TASKS])})
            found += answer[answered]
        return found

    async def _ask(
        self,
        method: str,
        verb: str,
        body: object = None,
        *,
        query: dict[str, str] | None = None,
        seconds: float = _SECONDS,
    ) -> Any:
        """Ask what concerns the whole queue; a lost answer may be repeated."""
        path = f"/api/queues/{quote(self.name, safe='')}{verb}"
        try:
            return await self._connection.request(method, path, body, query=query, seconds=seconds)
        except NoAnswer as error:
            raise unavailable(error) from None


def _pushed(task: Task) -> bytes:
    """Return a task as it is sent: what the queue keeps beside its body stands beside what that has, signed or not."""
    kept = task.as_dict(BOOKKEEPING)
    return task.encode()[:-1] + b"," + strict_json.dumps(kept)[1:] if kept else task.encode()


def _letters(answer: dict[str, Any]) -> list[DeadLetter]:
    return [
        DeadLetter(
            id=each["id"],
            reason=each["reason"],
            description=each["description"],
            body=body_of(each),
            deliveries=each["deliveries"],
            died=each["died"],
            batch=each.get("batch"),
        )
        for each in answer["tasks"]
    ]
