"""Why tasks died: dead letters by what they have in common."""

from starlette.requests import Request

from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.journal.error_grouping import GROUPINGS
from jobq.journal.views import DeadGroups
from jobq.server.tokens import Scope

PAGES = PageRoutes()
WITHIN = {"": None, "1h": 3600.0, "24h": 86400.0, "7d": 7 * 86400.0}  # died no longer ago
GROUPED_BY = ("exit", "error")
_MOST_GROUPS = 50


async def groups_of(site: Site, queue: str, by: tuple[str, ...], max_age_seconds: float | None = None) -> DeadGroups:
    """Return the largest groups of a queue's dead letters: all pages of all viewers share one look at them."""
    return await site.snapshots.get(
        ("groups", queue, by, max_age_seconds),
        lambda: site.views.dead_groups(queue, by, _MOST_GROUPS, max_age_seconds=max_age_seconds),
    )


@PAGES.add("/q/{queue}/dead", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show the groups, the largest first."""
    name = request.path_params["queue"]
    asked = request.query_params.getlist("by") or GROUPED_BY
    by = tuple(each for each in GROUPINGS if each in asked) or ("error",)
    within = request.query_params.get("within", "")
    within = within if within in WITHIN else ""
    found = await groups_of(site, name, by, WITHIN[within])
    return WebPage(
        template="dead.html",
        head="dead_form.html",
        title=f"Dead letters of {name}",
        queue=name,
        values={"found": found, "by": by, "groupings": GROUPINGS, "within": within, "spans": list(WITHIN)},
        seconds=5,
        command="" if within else site.command(name, f"dead list --group-by {','.join(by)}"),  # none takes the same
    )
