"""The tasks of a queue, filtered."""

from datetime import timedelta

from starlette.requests import Request

from jobq.dashboard import filters
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.journal.records import TaskState
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_ROWS = 50
_COUNTING = timedelta(milliseconds=100)  # what is counted by then is said as "at least"


@PAGES.add("/q/{queue}/tasks", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show those that a filter takes, a page at a time."""
    name, after = request.path_params["queue"], request.query_params.get("after", "")
    form = filters.read(request.query_params)
    found = await site.snapshots.get(
        ("tasks", name, form.wanted, after), lambda: site.views.tasks(name, form.wanted, after, _ROWS)
    )
    count = await site.snapshots.get(
        ("count", name, form.wanted), lambda: site.views.count(name, form.wanted, budget=_COUNTING)
    )
    only_state = next(iter(form.wanted.states)) if len(form.wanted.states) == 1 else None
    only_dead = only_state is TaskState.DEAD
    command = ""  # none takes the same
    if not form.given and (only_dead or not form.wanted.states):
        command = site.command(name, "dead list" if only_dead else "ps")
    return WebPage(
        template="tasks.html",
        head="tasks_form.html",
        title=f"Tasks of {name}",
        queue=name,
        values={
            "found": found,
            "count": count,
            "form": form,
            "states": list(TaskState),
            "after": after,
            "only_state": only_state,
        },
        seconds=0 if after else 5,
        command=command,
        actions=True,
    )
