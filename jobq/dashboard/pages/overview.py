"""All queues, those with trouble first."""

import asyncio
from typing import NamedTuple

from starlette.requests import Request

from jobq.dashboard.charts import LOST, PREEMPTED, Chart, ended_chart, total
from jobq.dashboard.series import DEFAULT_SPAN, points_shown
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.errors import JobqError, QueueNotFound
from jobq.journal.records import TaskState
from jobq.journal.views import QueueLine, ViewPage
from jobq.server.tokens import ALL_QUEUES, Scope

PAGES = PageRoutes()
_QUEUES = 50  # of one page


@PAGES.add("/", Scope.WATCH)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:
    """Show how many tasks each queue holds, and where to look first."""
    after = request.query_params.get("after", "")
    if ALL_QUEUES in viewer.token.queues:
        found = await site.snapshots.get(("queues", after), lambda: site.views.queues(after, _QUEUES))
    else:  # his alone, which he is told whatever others there are, and by no place in a list of all
        names = sorted(viewer.token.queues)
        lines = await asyncio.gather(*(_line(site, name) for name in names))
        found = ViewPage(rows=[line for line in lines if line is not None])
    shown = sorted((line for line in found.rows if viewer.may(Scope.WATCH, line.name)), key=_trouble)
    hours = await asyncio.gather(*(_hour(site, line.name) for line in shown))
    return WebPage(
        template="overview.html",
        title="Queues",
        values={"lines": list(zip(shown, hours, strict=True)), "after": found.after, "is_first": not after},
        seconds=5,
        command=site.command("QUEUE", "top"),
    )


class LastHour(NamedTuple):
    """What the overview shows of a queue's last hour."""

    chart: Chart
    lost: int
    preempted: int


async def _hour(site: Site, name: str) -> LastHour | None:
    try:
        points = await points_shown(site, name, DEFAULT_SPAN)
    except JobqError:  # the line without it is better than no line; the queue's own page says what is wrong
        return None
    return LastHour(ended_chart(points), total(points, LOST), total(points, PREEMPTED))


async def _line(site: Site, name: str) -> QueueLine | None:
    try:
        return await site.snapshots.get(("queue", name), lambda: site.views.queue(name))
    except QueueNotFound:
        return None


def _trouble(line: QueueLine) -> tuple[bool, bool, bool, str]:
    """Order expired leases first, then what is paused with work waiting, then dead letters, then by name."""

    def has(state: TaskState) -> bool:
        return state in line.counts and line.counts[state].number > 0

    return not has(TaskState.EXPIRED), not (line.paused and has(TaskState.READY)), not has(TaskState.DEAD), line.name
