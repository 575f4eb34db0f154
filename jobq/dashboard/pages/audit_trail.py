"""Who changed what in the dashboard: of one queue, or the latest of all."""

from collections.abc import Sequence

from starlette.requests import Request

from jobq.dashboard.change_notes import is_of
from jobq.dashboard.place_notes import notes_of
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.errors import JobqError
from jobq.journal.changes import QueueChange
from jobq.journal.notes import NoteKind
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_ROWS = 100
_MOST_OF_TASK = 5


async def changes_of_task(site: Site, viewer: Viewer, queue: str, task_id: str) -> Sequence[QueueChange]:
    """Return what was done to a task of late, the latest first, as far as the viewer is told."""
    if site.refresh_seconds:  # each look is billed, and the page Audit tells the same
        return []
    try:
        found = await notes_of(site, viewer, NoteKind.CHANGE, queue, "", _ROWS)
    except JobqError:  # the task without it is better than no task
        return []
    changes = (QueueChange.decode(each.note.value) for each in found)
    named = [each for each in changes if each is not None and task_id in each.ids and _may_see(viewer, queue, each)]
    return named[:_MOST_OF_TASK]


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
        if (change := QueueChange.decode(note.value)) is not None and _may_see(viewer, queue, change)
    ]
    return WebPage(
        template="audit.html",
        title=f"Audit of {name}" if name else "Audit",
        queue=name,
        values={"changes": changes, "after": "" if is_whole else found[-1].note.key, "is_first": not after},
        seconds=0 if after else 5,
    )


def _may_see(viewer: Viewer, queue: str, change: QueueChange) -> bool:
    return viewer.may(Scope.ADMIN, queue) or is_of(change, viewer)
