"""What `jobq check` asks of Service Bus: a queue's settings, and each behaviour that is known from documents alone.

jobq holds whichever way the contested ones are (`Fidelity` in the emulator has them as switches): what is found of
those is noted, and only what it holds under neither way differs.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from jobq.errors import AccessDenied, JobqError
from jobq.examination import Finding, Verdict
from jobq.task import new_id
from jobq_azure.common.errors import NoAnswer, NotSignedIn, certain
from jobq_azure.common.examination import clock
from jobq_azure.service_bus.admin_client import Admin, Description
from jobq_azure.service_bus.namespace import Namespace
from jobq_azure.service_bus.options import Options
from jobq_azure.service_bus.rest_client import GRAIN_SECONDS, Locked, Outgoing, RestClient

if TYPE_CHECKING:
    from jobq_azure.service_bus.amqp_client import Amqp

MOST_DELIVERIES: Final = 2000  # of one message, by the service
DELIVERIES_TO_SPARE: Final = 10
_WAIT_SECONDS: Final = 5  # for a message that is there
_LATE_SECONDS: Final = 1.5  # past the end of a lock, by clocks with a grain of one
_DELAY_SECONDS: Final = 3.0
_LONG_TEXT: Final = "x" * 5000  # 4,096 characters are contested
_STANDARD_BYTES: Final = 256 * 1024
_LOCKS: Final = (timedelta(seconds=5), timedelta(seconds=15))


def trouble(known: Description, budgets: int) -> dict[str, str]:
    """Return which of a queue's own rules would take tasks away from jobq's (S1, S7), and what to do about each.

    Args:
        known: what the queue was made with.
        budgets: how often a task may be started, by the settings.
    """
    found: dict[str, str] = {}
    if known.max_deliveries <= budgets:
        found["MaxDeliveryCount"] = (
            f"makes a dead letter of what was delivered {known.max_deliveries} times (MaxDeliveryCount), before jobq's"
            f" budgets of {budgets} are used up: raise it to {min(budgets + DELIVERIES_TO_SPARE, MOST_DELIVERIES)}"
        )
    if known.time_to_live is not None:
        found["DefaultMessageTimeToLive"] = (
            f"lets messages expire after {known.time_to_live} (DefaultMessageTimeToLive): tasks that wait longer are"
            " lost to jobq; take it away"
        )
    if known.has_sessions:
        found["RequiresSession"] = "hands out sessions alone (RequiresSession), and jobq has none: make another queue"
    return found


async def findings(admin: Admin, amqp: "Amqp", options: Options) -> AsyncIterator[Finding]:
    """Look at a queue's settings; changes nothing."""
    yield clock(await certain(admin.now()), time.time())
    try:
        known = await certain(admin.describe())
    except NotSignedIn:
        raise
    except AccessDenied:
        yield Finding(
            what="the queue's settings",
            found="not shown to this identity",
            verdict=Verdict.UNKNOWN,
            advice="only who may manage the queue may read them; a worker needs no such right. If its locks are shorter"
            f" than {options.lock.total_seconds():g} s, set JOBQ_SERVICE_BUS_LOCK_DURATION",
        )
    else:
        wrong = trouble(known, options.budgets)
        values = {
            "MaxDeliveryCount": known.max_deliveries,
            "DefaultMessageTimeToLive": known.time_to_live or "none",
            "RequiresSession": known.has_sessions,
        }
        for name, value in values.items():
            verdict = Verdict.DIFFERS if name in wrong else Verdict.OK
            yield Finding(what=name, found=str(value), verdict=verdict, advice=wrong.get(name, ""))
        yield Finding(what="LockDuration", found=str(known.lock), verdict=Verdict.NOTED)
        window = f"for {known.dedup_window}" if known.dedup_window else "no: a push whose answer is lost may add twice"
        yield Finding(what="an id is remembered", found=window, verdict=Verdict.NOTED)
    try:
        await amqp.reach()
    except (JobqError, NoAnswer) as error:
        advice = f"{error}; JOBQ_SERVICE_BUS_WEBSOCKET=1 goes by port 443 and proxies"
        yield Finding(what="AMQP, for dead letters", found="no", verdict=Verdict.DIFFERS, advice=advice)
    else:
        yield Finding(what="AMQP, for dead letters", found="yes")


@dataclass(frozen=True, kw_only=True)
class ServiceBusProbes:
    """Tries the service out on a queue that is new and nobody else's.

    Attributes:
        namespace: entered.
        wire: to the queue over REST.
        amqp: to it over AMQP.
        admin: of it.
        options: that it was made with.
    """

    namespace: Namespace
    wire: RestClient
    amqp: "Amqp"
    admin: Admin
    options: Options

    async def run(self) -> AsyncIterator[Finding]:
        """Try out one after the other."""
        for probe in (
            self._delivery_counts,
            self._lost_lock,
            self._expired_lock,
            self._renewal,
            self._changed_lock,
            self._schedule,
            self._dead_letter,
            self._long_dead_letter,
            self._repetition,
            self._too_large,
            self._missing,
        ):
            try:
                async for finding in probe():
                    yield finding
            except (JobqError, NoAnswer) as error:
                what = probe.__name__.strip("_").replace("_", " ")
                yield Finding(what=what, found="it failed", verdict=Verdict.UNKNOWN, advice=str(error))

    async def _sent(self, **fields: str | float) -> str:
        name = new_id()
        at = fields.get("at")
        await self.wire.send(Outgoing(body=b"check", message_id=name, at=None if at is None else float(at)))
        return name

    async def _locked(self, name: str) -> Locked:
        """Lock a message, and complete what else is in the way."""
        end = time.monotonic() + _WAIT_SECONDS + _LOCKS[0].total_seconds()
        while (found := await self.wire.lock(_WAIT_SECONDS)) is None or found.message_id != name:
            if found is not None:
                await self.wire.complete(found)
            if time.monotonic() > end:
                raise NoAnswer(f"{self.wire.place}: a message that was sent is not handed out")
        return found

    async def _status(self, locked: Locked) -> int:
        return (await self.namespace.request("POST", locked.path)).status

    async def _delivery_counts(self) -> AsyncIterator[Finding]:
        name = await self._sent()
        first = await self._locked(name)
        yield Finding.compared("DeliveryCount of a first delivery over REST", first.count, 1, also={0})
        await self.wire.unlock(first)
        second = await self._locked(name)
        yield Finding.compared("a message that was given back counts one more", second.count - first.count, 1)
        await self.wire.complete(second)

    async def _lost_lock(self) -> AsyncIterator[Finding]:
        locked = await self._locked(await self._sent())
        await self.wire.complete(locked)
        gone = await self._status(locked)
        also = {HTTPStatus.CONFLICT, HTTPStatus.GONE}
        yield Finding.compared("status of a lock that is gone", gone, int(HTTPStatus.NOT_FOUND), also=also)

    async def _expired_lock(self) -> AsyncIterator[Finding]:
        name = await self._sent()
        locked = await self._locked(name)
        await asyncio.sleep(locked.seconds + GRAIN_SECONDS + _LATE_SECONDS)
        is_lost = await self._status(locked) != HTTPStatus.OK
        what = "a lock that ran out is lost, also while nobody else has the message"
        yield Finding.compared(what, is_lost, True, also={False})
        if is_lost:
            again = await self._locked(name)
            yield Finding.compared("an expired lock counts as a delivery", again.count - locked.count, 1)
            locked = again
        await self.wire.complete(locked)

    async def _renewal(self) -> AsyncIterator[Finding]:
        locked = await self._locked(await self._sent())
        says = (await self.wire.renew(locked)).seconds is not None
        yield Finding.compared("a renewal's answer says for how long", says, False, also={True})
        await self.wire.complete(locked)

    async def _changed_lock(self) -> AsyncIterator[Finding]:
        """An operator may change it under the tasks that run."""
        deliveries, window = self.options.budgets + DELIVERIES_TO_SPARE, self.options.dedup_window
        name = await self._sent()
        locked = await self._locked(name)
        await self.admin.change_lock(_LOCKS[1], deliveries, window)
        renewal = await self.wire.renew(locked)
        await asyncio.sleep(_LOCKS[0].total_seconds() + _LATE_SECONDS)
        lasts = renewal.seconds is not None and renewal.seconds > _LOCKS[0].total_seconds()
        lasts = lasts or await self.wire.lock(0) is None
        yield Finding.compared("a renewal lasts what the queue says by then", lasts, True, also={False})
        await self.admin.change_lock(_LOCKS[0], deliveries, window)
        if lasts:
            await self.wire.complete(locked)

    async def _schedule(self) -> AsyncIterator[Finding]:
        now = await self.admin.now()
        name = await self._sent(at=now + _DELAY_SECONDS)
        shown = [seen for seen in await self.amqp.peek(10) if seen.message_id == name]
        yield Finding.compared("a look over AMQP shows what is scheduled", bool(shown and shown[0].is_scheduled), True)
        early = await self.wire.lock(0)
        yield Finding.compared("what is scheduled is not handed out before", early is None, True)
        await asyncio.sleep(_DELAY_SECONDS)
        locked = await self._locked(name)
        is_new = bool(shown) and locked.number != shown[0].number
        yield Finding.compared("a message gets another number when its time comes", is_new, True, also={False})
        await self.wire.complete(locked)

    async def _dead_letter(self) -> AsyncIterator[Finding]:
        name = await self._sent()
        locked = await self._locked(name)
        await self.amqp.dead_letter(locked.token, "check", "by jobq check", {"check": "yes"})
        dead = [seen for seen in await self.amqp.peek(10, dead=True) if seen.message_id == name]
        is_there = bool(dead) and (dead[0].reason, dead[0].body) == ("check", b"check")
        yield Finding.compared(
            "a lock of REST makes a dead letter over AMQP, whole and with its reason", is_there, True
        )
        kept = bool(dead) and dead[0].text("check") == "yes"
        yield Finding.compared("a dead letter keeps the properties that it is given", kept, True, also={False})

    async def _long_dead_letter(self) -> AsyncIterator[Finding]:
        locked = await self._locked(await self._sent())
        try:
            await self.amqp.dead_letter(locked.token, "check", _LONG_TEXT, {})
            is_refused = False
        except (JobqError, NoAnswer):
            is_refused = True
        yield Finding.compared("a description over 4,096 characters is refused", is_refused, True, also={False})
        if is_refused:
            await self.wire.complete(locked)

    async def _repetition(self) -> AsyncIterator[Finding]:
        if not self.options.dedup_window:
            return
        name = await self._sent()
        await self.wire.send(Outgoing(body=b"check", message_id=name))
        await self.wire.complete(await self._locked(name))
        yield Finding.compared("a repeated message id is dropped", await self.wire.lock(1) is None, True)

    async def _too_large(self) -> AsyncIterator[Finding]:
        known = await self.admin.describe()
        most = known.max_message_bytes or _STANDARD_BYTES
        path = f"/{self.namespace.place.queue}/messages"
        answer = await self.namespace.request("POST", path, body=b"x" * (most + 64 * 1024))
        also = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.BAD_REQUEST}
        what = f"status of a message over {most // 1024} KiB"
        yield Finding.compared(what, answer.status, int(HTTPStatus.FORBIDDEN), also=also)
        if answer.status == HTTPStatus.CREATED:
            await self.wire.take()

    async def _missing(self) -> AsyncIterator[Finding]:
        """By this queue itself: a key may be good for no other."""
        await self.admin.delete()
        path = f"/{self.namespace.place.queue}/messages/head?timeout=0"
        answer = await self.namespace.request("POST", path)
        what = "status of a queue that is not there"
        yield Finding.compared(what, answer.status, int(HTTPStatus.GONE), also={HTTPStatus.NOT_FOUND})
