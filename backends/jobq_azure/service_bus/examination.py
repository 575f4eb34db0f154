"""What `jobq check` asks of Service Bus: the settings of a queue."""

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from jobq.errors import AccessDenied, JobqError
from jobq.examination import Finding, Verdict
from jobq_azure.common.errors import NoAnswer, NotSignedIn, certain
from jobq_azure.common.examination import clock
from jobq_azure.service_bus.admin_client import Admin, Description
from jobq_azure.service_bus.options import Options

if TYPE_CHECKING:
    from jobq_azure.service_bus.amqp_client import Amqp

MOST_DELIVERIES: Final = 2000  # of one message, by the service
DELIVERIES_TO_SPARE: Final = 10


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
