"""Who changed what in the dashboard: of one queue, or the latest of all."""

from starlette.requests import Request

from jobq.dashboard.change_notes import is_of
from jobq.dashboard.place_notes import notes_of
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.journal.changes import QueueChange
from jobq.journal.notes import NoteKind
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_ROWS = 100


@PAGES.add("/audit", Scope.VIEW)
@PAGES.add("/q/{queue}/audit", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:
    """Show the latest first; to who is no administrator of a queue, what he did himself."""
    name, after = request.path_params.get("queue", ""), request.query_params.get("after", "")
    found = await notes_of(site, viewer, NoteKind.CHANGE, name, after if name else "", _ROWS)
    is_whole = len(found) < _ROWS or not name
    changes = [
        (queue, change)
        for queue, note in sorted(found, key=lambda each: each.note.key)[:_ROWS]
        if (change := QueueChange.decode(note.value)) is not None
        and (viewer.may(Scope.ADMIN, queue) or is_of(change, viewer))
    ]
    return WebPage(
        template="audit.html",
        title=f"Audit of {name}" if name else "Audit",
        queue=name,
        values={"changes": changes, "after": "" if is_whole else found[-1].note.key, "is_first": not after},
        seconds=0 if after else 5,
    )
