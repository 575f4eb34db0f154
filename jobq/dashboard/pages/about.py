"""About this service, and the licences of what it brings."""

from starlette.requests import Request

import jobq
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.dashboard.static_files import static_text
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_VENDORED = ("htmx 4.0.1",)


@PAGES.add("/about", Scope.WATCH)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show what this is, and as whom one is signed in."""
    licences = {each: static_text(f"vendored/{each.split()[0]}-LICENSE.txt") for each in _VENDORED}
    return WebPage(template="about.html", title="About", values={"version": jobq.__version__, "licences": licences})
