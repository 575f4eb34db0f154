"""Azure Scheduled Events: learns that this machine is about to vanish, while there is time to give the work back (P8).

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events. The service answers only from inside the
machine, may take two minutes to answer the first call, lists events of the whole placement group, and drops an event
that is over or called off. jobq never acknowledges one: that would approve it for every machine it names.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from jobq.events import Events
from jobq.run.stopping import Stopping

if TYPE_CHECKING:
    import aiohttp

METADATA_URL: Final = "http://169.254.169.254"
_EVENTS_PATH: Final = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME_PATH: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_KINDS: Final = frozenset({"Preempt", "Terminate", "Redeploy", "Reboot"})
_POLL_SECONDS: Final = 1.0
_FIRST_ANSWER_SECONDS: Final = 130.0  # the service starts itself on the first call
_ANSWER_SECONDS: Final = 5.0
_LONGEST_PAUSE_SECONDS: Final = 128.0  # between two looks for the service; each takes twice as long to come
_MOST_GRACE_SECONDS: Final = 20.0  # P8: grace <= min(notice - 5 s, 20 s)
_SPARE_SECONDS: Final = 5.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Notice:
    """One event that concerns this machine.

    Attributes:
        id: the service's.
        kind: Preempt, Terminate, Redeploy or Reboot.
        seconds: until it happens, by two times of one answer; 0 when it has begun or nobody can say.
    """

    id: str
    kind: str
    seconds: float

    @property
    def grace(self) -> float:
        """Seconds that tasks may take to end (P8)."""
        return max(0.0, min(self.seconds - _SPARE_SECONDS, _MOST_GRACE_SECONDS))


class PreemptionWatch:
    """Polls the metadata service and pauses the worker while a notice stands.

    Args:
        stopping: paused on a notice, resumed when it is called off.
        events: where both are published.
        url: the metadata service; another one for tests.
        mode: auto = give up where nothing ever answers; on = complain and keep trying.
        poll_seconds: between two calls; the documentation recommends one second.
    """

    def __init__(
        self,
        stopping: Stopping,
        events: Events,
        *,
        url: str = METADATA_URL,
        mode: Literal["auto", "on"] = "auto",
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._stopping = stopping
        self._events = events
        self._url = url.rstrip("/")
        self._mode = mode
        self._poll_seconds = poll_seconds
        self._has_answered = False

    async def run(self) -> None:
        """Watch until cancelled, or until nothing has answered for so long that this is no Azure machine."""
        pause = self._poll_seconds
        while self._mode == "on" or self._has_answered or pause <= _LONGEST_PAUSE_SECONDS:
            try:
                if self._mode == "on" or await self._listens():
                    await self._begin()
            except Exception as error:  # noqa: BLE001 - no network, no descriptor, nonsense: a later look may know more
                level = logging.WARNING if self._mode == "on" else logging.DEBUG
                _log.log(level, "the Azure metadata service at %s does not answer: %s", self._url, error)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE_SECONDS))
            pause *= 2
        told = f"nothing answers at {self._url}, so a preemption comes as SIGTERM only"
        self._events.emit("preemption.unwatched", detail=told)

    async def _listens(self) -> bool:
        """Return whether anything listens there at all, before a laptop pays for an HTTP client."""
        parts = urlsplit(self._url)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def _begin(self) -> None:
        """Ask for this machine's name, and watch; raises whatever keeps it from that."""
        aiohttp = await asyncio.to_thread(_import_aiohttp)  # 240 ms that must not delay the first task
        timeout = aiohttp.ClientTimeout(total=_FIRST_ANSWER_SECONDS)
        async with aiohttp.ClientSession(headers={"Metadata": "true"}, trust_env=False, timeout=timeout) as session:
            async with session.get(self._url + _NAME_PATH) as answer:
                self._has_answered = True  # whatever it says: there is such a service, and it may know more later
                answer.raise_for_status()
                name = (await answer.text()).strip()
            self._events.emit("preemption.watched", detail=f"notices come from {self._url}")
            await self._watch(session, name)

    async def _watch(self, session: "aiohttp.ClientSession", name: str) -> None:
        known: Notice | None = None
        while True:
            try:
                notice = await self._ask(session, name, first=known is None)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next second may know more; no notice is no news
                _log.debug("the metadata service did not list its events: %r", error)
            else:
                if notice is not None and known is None:
                    self._events.emit(
                        "preemption.notice", logging.WARNING, type=notice.kind, in_s=notice.seconds, event_id=notice.id
                    )
                    self._stopping.pause(f"{notice.kind} of this machine in {notice.seconds:.0f} s", notice.grace)
                elif notice is None and known is not None:
                    self._events.emit("preemption.called_off", type=known.kind, event_id=known.id)
                    self._stopping.resume()
                known = notice
            await asyncio.sleep(self._poll_seconds)

    async def _ask(self, session: "aiohttp.ClientSession", name: str, *, first: bool) -> Notice | None:
        async with asyncio.timeout(_FIRST_ANSWER_SECONDS if first else _ANSWER_SECONDS):
            async with session.get(self._url + _EVENTS_PATH) as answer:
                answer.raise_for_status()
                return concerning(await answer.json(content_type=None), name, answer.headers.get("Date"))


def concerning(document: Any, name: str, date: str | None) -> Notice | None:
    """Return the nearest notice in a document of the service that names this machine.

    Args:
        document: as decoded; a stranger's, so nothing is taken for granted.
        name: of this machine; events for others of its group come along.
        date: the answer's own time: a local wall clock is never subtracted from a server's (rule 1.3(6)).
    """
    found: list[Notice] = []
    listed = document.get("Events") if isinstance(document, dict) else None
    for event in listed if isinstance(listed, list) else []:
        if not isinstance(event, dict) or event.get("EventType") not in _KINDS:
            continue
        resources = event.get("Resources")
        if isinstance(resources, list) and name in resources:
            seconds = _seconds_between(date, event.get("NotBefore"))
            found.append(Notice(str(event.get("EventId", "")), str(event["EventType"]), seconds))
    return min(found, key=lambda notice: notice.seconds, default=None)


def _seconds_between(date: str | None, not_before: object) -> float:
    if not date or not isinstance(not_before, str) or not not_before:
        return 0.0  # it has begun
    try:
        begin, end = parsedate_to_datetime(date), parsedate_to_datetime(not_before)
        return max(0.0, (_aware(end) - _aware(begin)).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _import_aiohttp() -> Any:
    import aiohttp  # noqa: PLC0415 - heavy, and on a thread of its own

    return aiohttp
