"""The batches of a queue."""

from contextlib import suppress

from starlette.requests import Request

from jobq.batches import batches_of
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.errors import JobqError
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_ROWS = 50
_MOST_TIMED = 10  # batches of which is said how long they take


@PAGES.add("/q/{queue}/batches", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show how far each is."""
    name, after = request.path_params["queue"], request.query_params.get("after", "")
    has_all = request.query_params.get("all") == "1"

    async def listed() -> object:
        backend = await site.places.take(name)
        try:
            kept = batches_of(backend)
            found = list(await kept.list(after, _ROWS, unfinished=not has_all))
            if not site.refresh_seconds:  # else each of these is billed
                timed = [number for number, each in enumerate(found) if each.unfinished and each.sealed][:_MOST_TIMED]
                for number in timed:
                    with suppress(JobqError):  # it was deleted meanwhile: as it was listed, it stands there
                        found[number] = await kept.find(found[number].name)
            return found
        finally:
            site.places.give(name)

    found = await site.snapshots.get(("batches", name, after, has_all), listed)
    return WebPage(
        template="batches.html",
        title=f"Batches of {name}",
        queue=name,
        values={"found": found, "has_all": has_all, "rows": _ROWS},
        seconds=0 if after else 5,
        command=site.command(name, "batch list"),
        actions=True,
    )
