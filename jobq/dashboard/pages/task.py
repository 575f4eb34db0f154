"""One task: what it is, how its attempts went, and what it printed."""

import re
import shlex
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from jobq.dashboard.pages.audit_trail import changes_of_task
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.journal.records import TaskState
from jobq.server.error_responses import RequestRefused
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


@PAGES.add("/q/{queue}/t/{id:path}/output", Scope.VIEW)
async def output(site: Site, viewer: Viewer, request: Request) -> Response:  # noqa: ARG001 - as all pages
    """Give the end of an attempt's output as a file, which a browser opens as text alone."""
    name, task_id = request.path_params["queue"], request.path_params["id"]
    number = request.query_params.get("attempt", "")
    found = await site.views.output(name, task_id, int(number) if _NUMBER.fullmatch(number) else None)
    if found is None:
        raise RequestRefused(404, "no_output", "no output of this attempt is kept")
    attempt, text = found
    return PlainTextResponse(
        text.encode("utf-8", "replace"),
        headers={
            "content-security-policy": "sandbox; default-src 'none'",
            "content-disposition": f'attachment; filename="output-{attempt}.txt"',
        },
    )


@PAGES.add("/q/{queue}/t/{id:path}", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:
    """Show all that is known of it."""
    name, task_id = request.path_params["queue"], request.path_params["id"]
    detail = await site.snapshots.get(("task", name, task_id), lambda: site.views.task(name, task_id))
    if detail is None:
        raise RequestRefused(404, "no_such_task", "nothing is known of this task: it is forgotten, or was never here")
    is_running = detail.row.state in (TaskState.RUNNING, TaskState.EXPIRED)
    printed = None
    if not is_running:
        printed = await site.snapshots.get(("output", name, task_id), lambda: site.views.output(name, task_id))
    return WebPage(
        template="task.html",
        title=f"Task {task_id}",
        queue=name,
        values={"task": detail, "row": detail.row, "printed": printed, "is_running": is_running}
        | {"changes": await changes_of_task(site, viewer, name, task_id)},
        seconds=2 if is_running else 0 if detail.row.state.is_final else 5,
        command=site.command(name, f"status {shlex.quote(task_id)}"),
        actions=True,
    )
