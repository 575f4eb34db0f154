"""Actions on all tasks that a filter takes: asked for, confirmed with how many they are, looked at while they go on."""

import json
from datetime import timedelta
from urllib.parse import unquote, urlsplit

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from jobq.dashboard import bulk, filters, text
from jobq.dashboard.change_notes import noted_change
from jobq.dashboard.forms import form_of
from jobq.dashboard.pages.actions import ACTIONS, PageAction
from jobq.dashboard.pages.enter import ours
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import ROOT, PageRoutes, Site, WebPage, link, needs, to
from jobq.formats.visible_text import visible
from jobq.server.error_responses import RequestRefused
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_COUNT_BUDGET = timedelta(seconds=2)
_MOST_EXAMPLES = 5
_TYPED_FROM = 10_000  # tasks: the name of the queue is to be typed


@PAGES.add("/q/{queue}/act-all", Scope.VIEW, changes=True)
async def ask(site: Site, viewer: Viewer, request: Request) -> WebPage:
    """Show what will be done to how many."""
    _bulk(site)
    name = request.path_params["queue"]
    given = dict(await form_of(request, viewer))
    key, action = _asked(viewer, name, given)
    back = ours(given.get("back", ""))
    if unquote(urlsplit(back).path) != f"{ROOT}/q/{name}/tasks":  # else no filter would be all
        raise RequestRefused(400, "malformed_request", "this is asked for on the list of the queue's tasks alone")
    query = urlsplit(back).query
    form = filters.read(QueryParams(query))
    wanted = bulk.BulkFilter(key, query).wanted
    if form.problems or wanted is None:
        raise RequestRefused(400, "malformed_request", "this filter takes no task that this can be done to")
    count = await site.views.count(name, wanted, budget=_COUNT_BUDGET)
    examples = await site.views.tasks(name, wanted, "", _MOST_EXAMPLES)
    is_typed = not count.is_exact or count.number >= _TYPED_FROM or not form.given
    many = f"{'' if count.is_exact else 'at least '}{count.number:,} task{'' if count.number == 1 else 's'}"
    return WebPage(
        template="confirm_all.html",
        title=action.title.format(many),
        queue=name,
        values={
            "key": key,
            "action": action,
            "conditions": {"state": ", ".join(sorted(wanted.states)), **form.given},
            "rows": examples.rows,
            "query": query,
            "began": repr(count.now),
            "proof": viewer.proof(_what(key, name, query, repr(count.now), is_typed=is_typed)),
            "back": back,
            "is_typed": is_typed,
        },
    )


@PAGES.add("/q/{queue}/do-all", Scope.VIEW, changes=True)
async def act(site: Site, viewer: Viewer, request: Request) -> Response:
    """Begin what was confirmed, and lead to where it can be looked at."""
    name = request.path_params["queue"]
    given = dict(await form_of(request, viewer))
    key, _ = _asked(viewer, name, given)
    query, began = given.get("query", ""), given.get("began", "")
    is_typed = "typed" in given
    if not viewer.is_proof(given.get("proof", ""), _what(key, name, query, began, is_typed=is_typed)):
        raise RequestRefused(403, "forbidden", "this is not what was shown; choose again")
    if is_typed and given["typed"].strip() != name:
        raise RequestRefused(400, "not_typed", f"to go on, type the name of the queue: {text.visible(name)}")
    async with noted_change(site.places.root, viewer, request, f"{key} all", name, query=query or "all") as change:
        change.said = f"begun as {await _bulk(site).begin(key, name, query, float(began), viewer.token.id)}"
    site.snapshots.forget()
    return to(link("actions"))


@PAGES.add("/actions", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show those that go on, and the last ones."""
    found = await site.snapshots.get(("actions",), site.bulk.list) if site.bulk else []
    return WebPage(
        template="actions.html",
        title="Actions",
        values={
            "found": [each for each in found if viewer.may(Scope.VIEW, each.queue)],
            "may_stop": lambda each: viewer.may(ACTIONS[each.action].scope, each.queue),
        },
        seconds=2,
    )


@PAGES.add("/actions/stop", Scope.VIEW, changes=True)
async def stop(site: Site, viewer: Viewer, request: Request) -> Response:
    """Stop one."""
    given = dict(await form_of(request, viewer))
    found = next((each for each in await _bulk(site).list() if each.id == given.get("id")), None)
    if found is None:
        raise RequestRefused(404, "no_such_action", "there is no such action")
    needs(viewer, ACTIONS[found.action].scope, found.queue)
    async with noted_change(site.places.root, viewer, request, f"stop {found.action} all", found.queue) as change:
        await _bulk(site).stop(found.id)
        change.said = f"{found.id} goes no further"
    site.snapshots.forget()
    return to(link("actions"))


def _bulk(site: Site) -> bulk.BulkActions:
    if site.bulk is None:
        raise RequestRefused(
            404, "not_here", "what is to be done to all tasks of a filter is begun where they are kept"
        )
    return site.bulk


def _asked(viewer: Viewer, queue: str, given: dict[str, str]) -> tuple[str, PageAction]:
    key = given.get("action", "")
    if key not in bulk.STATES:
        raise RequestRefused(400, "malformed_request", f"there is no action {visible(key[:40])!r} on all tasks")
    needs(viewer, ACTIONS[key].scope, queue)
    return key, ACTIONS[key]


def _what(key: str, queue: str, query: str, began: str, *, is_typed: bool) -> str:
    return "confirm all " + json.dumps([key, queue, query, began, is_typed])
