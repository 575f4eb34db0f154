"""Why tasks died: dead letters by what they have in common."""

from starlette.requests import Request

from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.journal.error_grouping import GROUPINGS
from jobq.journal.views import DeadGroups
from jobq.server.tokens import Scope

PAGES = PageRoutes()
GROUPED_BY = ("exit", "error")
_MOST_GROUPS = 50


async def groups_of(site: Site, queue: str, by: tuple[str, ...]) -> DeadGroups:
    """Return the largest groups of a queue's dead letters: all pages of all viewers share one look at them."""
    return await site.snapshots.get(("groups", queue, by), lambda: site.views.dead_groups(queue, by, _MOST_GROUPS))


@PAGES.add("/q/{queue}/dead", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show the groups, the largest first."""
    name = request.path_params["queue"]
    asked = request.query_params.getlist("by") or GROUPED_BY
    by = tuple(each for each in GROUPINGS if each in asked) or ("error",)
    found = await groups_of(site, name, by)
    return WebPage(
        template="dead.html",
        head="dead_form.html",
        title=f"Dead letters of {name}",
        queue=name,
        values={"found": found, "by": by, "groupings": GROUPINGS},
        seconds=5,
        command=site.command(name, f"dead list --group-by {','.join(by)}"),
    )
