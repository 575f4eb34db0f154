"""What runs, the longest first; deliveries whose lease ran out before them."""

from starlette.requests import Request

from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.journal.records import TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_ROWS = 200
_LEASED = TaskFilter(states=frozenset({TaskState.RUNNING, TaskState.EXPIRED}))


@PAGES.add("/q/{queue}/running", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show how far each is, what it uses, and what is left of its lease."""
    name, after = request.path_params["queue"], request.query_params.get("after", "")
    found = await site.snapshots.get(("leased", name, after), lambda: site.views.tasks(name, _LEASED, after, _ROWS))
    return WebPage(
        template="running.html",
        title=f"Running in {name}",
        queue=name,
        values={"found": found},
        seconds=0 if after else 2,
        command=site.command(name, "ps"),
        actions=True,
    )
