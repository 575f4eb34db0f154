"""One queue: what waits, what runs, what failed and why."""

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request

from jobq.dashboard.charts import (
    FAILED,
    LOST,
    PREEMPTED,
    SUCCEEDED,
    depth_chart,
    ended_chart,
    run_chart,
    start_chart,
    wait_chart,
)
from jobq.dashboard.pages.dead import GROUPED_BY, groups_of
from jobq.dashboard.series import DEFAULT_SPAN, SPANS, points_shown
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.views import DeadGroups, ViewPage
from jobq.server.tokens import Scope

if TYPE_CHECKING:
    from jobq.journal.task_rows import TaskRow

PAGES = PageRoutes()
_MOST_LISTED = 5
_CHARTS = (ended_chart, depth_chart, wait_chart, start_chart, run_chart)
_LEASED = TaskFilter(states=frozenset({TaskState.RUNNING, TaskState.EXPIRED}))


@PAGES.add("/q/{queue}", Scope.WATCH)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:
    """Show its counts and charts; to who may see tasks, those that run longest and why others died."""
    name = request.path_params["queue"]
    span = request.query_params.get("span", "")
    span = span if span in SPANS else DEFAULT_SPAN
    line = await site.snapshots.get(("queue", name), lambda: site.views.queue(name))
    points = [] if site.counts_alone else await points_shown(site, name, span)
    running: ViewPage[TaskRow] = ViewPage(rows=())
    groups = DeadGroups(groups=())
    if viewer.may(Scope.VIEW, name) and not site.counts_alone:
        running, groups = await asyncio.gather(
            site.snapshots.get(("running", name), lambda: site.views.tasks(name, _LEASED, "", _MOST_LISTED)),
            groups_of(site, name, GROUPED_BY),
        )
    return WebPage(
        template="queue.html",
        title=name,
        queue=name,
        values={
            "line": line,
            "running": running,
            "groups": groups.groups[:_MOST_LISTED],
            "charts": [draw(points) for draw in _CHARTS if points],
            "points": [each for each in reversed(points) if each.ended is not None or each.depth is not None],
            "spans": list(SPANS),
            "span": span,
            "since": points[0].at if points else 0,
            "columns": {"succeeded": SUCCEEDED, "failed": FAILED, "lease lost": LOST, "preempted": PREEMPTED},
        },
        seconds=5,
        command=site.command(name, "top"),
        actions=True,
    )
