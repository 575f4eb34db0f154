"""The named leases of a queue."""

from starlette.requests import Request

from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_ROWS = 100


@PAGES.add("/q/{queue}/leases", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show who holds what, and how far the work under each has come."""
    name = request.path_params["queue"]
    prefix, after = request.query_params.get("prefix", "")[:200], request.query_params.get("after", "")
    found = await site.snapshots.get(
        ("leases", name, prefix, after), lambda: site.views.leases(name, prefix, after, _ROWS)
    )
    return WebPage(
        template="leases.html",
        title=f"Leases of {name}",
        queue=name,
        values={"found": found, "prefix": prefix},
        seconds=0 if after else 5,
        command=site.command(name, "lease list"),
    )
