"""The dashboard as an ASGI application: routes, who may see what, and headers that let a browser do nothing else."""

import logging
import mimetypes
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from jobq.dashboard.pages import (
    about,
    actions,
    audit_trail,
    batches,
    bulk_actions,
    dead,
    enter,
    hosts,
    leases,
    overview,
    queue,
    running,
    task,
    tasks,
    tokens,
)
from jobq.dashboard.site import ROOT, PageRoute, Site, WebPage, link, needs, rendered
from jobq.dashboard.static_files import STATIC, static_file
from jobq.errors import JobqError
from jobq.server.error_responses import RequestRefused, refused_for
from jobq.server.tokens import audit

_log: Final = logging.getLogger("jobq.server")
_PARTS: Final = (
    overview,
    queue,
    tasks,
    task,
    running,
    dead,
    batches,
    leases,
    hosts,
    actions,
    bulk_actions,
    audit_trail,
    tokens,
    about,
)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_TRY_AGAIN_SECONDS: Final = 5
_WHAT_TO_DO: Final = {
    401: "Sign in again.",
    403: "Ask who runs this service for a token that permits it.",
    404: "It may be forgotten, or never have been here; the queue's page shows what there is.",
    429: "Wait a moment, and load the page again.",
    503: "This page tries again by itself.",
    504: "Look whether it was done, before you do it again.",
}


def made(site: Site) -> Starlette:
    """Return the application of a site.

    Args:
        site: with its views entered.
    """
    routes = [
        Route(ROOT + each.path, _answers(site, each), methods=[_method(each)]) for part in _PARTS for each in part.PAGES
    ]
    open_ = [
        Route(ROOT, _moved, methods=["GET"]),
        Route(f"{STATIC}/{{hash}}/{{name:path}}", _guarded(site, _static), methods=["GET"]),
        Route(f"{ROOT}/enter", _guarded(site, enter.show), methods=["GET"]),
        Route(f"{ROOT}/enter", _guarded(site, enter.sign_in), methods=["POST"]),
        Route(f"{ROOT}/leave", _guarded(site, enter.sign_out), methods=["POST"]),
    ]

    async def not_found(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404

        async def refuse(site: Site, request: Request) -> Response:  # noqa: ARG001 - as all handlers
            raise RequestRefused(status, "not_found", "there is no such page here")

        return await _guarded(site, refuse)(request)

    found = Starlette(routes=[*open_, *routes], exception_handlers={HTTPException: not_found})
    found.router.redirect_slashes = False  # to what a proxy calls this service, before anything was checked
    return found


def _method(route: PageRoute) -> str:
    return "POST" if route.changes else "GET"


async def _moved(request: Request) -> Response:  # noqa: ARG001 - Starlette's signature
    return RedirectResponse(link(""), status_code=307)


async def _static(site: Site, request: Request) -> Response:  # noqa: ARG001 - as all handlers
    name = request.path_params["name"]
    body = static_file(request.path_params["hash"], name)
    if body is None:
        raise RequestRefused(404, "not_found", "there is no such file here")
    kind = mimetypes.guess_type(name)[0] or "text/plain"
    return Response(body, media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"})


def _guarded(
    site: Site, handler: Callable[[Site, Request], Awaitable[WebPage | Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers requests which are none of another site, and each error by a page."""

    async def endpoint(request: Request) -> Response:
        try:
            site.guard.check(request.method, request.headers)
            found = await handler(site, request)
            response = (
                rendered(site, await site.viewer(request), request, found) if isinstance(found, WebPage) else found
            )
        except RequestRefused as refused:
            return await _error_page(site, request, refused)
        except JobqError as error:
            answer = refused_for(error, request.path_params.get("queue", ""))
            if answer.status >= 500:  # noqa: PLR2004 - what HTTP says of the server
                _log.warning("dashboard: %s: %s", type(error).__name__, error)
            return await _error_page(site, request, answer)
        except Exception:  # noqa: BLE001 - the last resort: no stack trace leaves the service
            incident = uuid.uuid4().hex[:8]
            _log.exception("incident %s in the dashboard", incident)
            message = f"this page failed; the service's log says more under {incident}"
            return await _error_page(site, request, RequestRefused(500, "internal", message))
        return _with_headers(response)

    return endpoint


def _answers(site: Site, route: PageRoute) -> Callable[[Request], Awaitable[Response]]:
    async def handler(site: Site, request: Request) -> WebPage | Response:
        viewer = await site.viewer(request)
        if viewer is None:
            if route.changes or "hx-request" in request.headers:
                raise RequestRefused(401, "no_session", "you are not signed in any more")
            return RedirectResponse(link("enter", next=str(request.url.replace(scheme="", netloc=""))), status_code=303)
        if wait := site.rate.wait(viewer.session):
            raise RequestRefused(429, "too_many_requests", "slower", headers=(("Retry-After", str(int(wait) + 1)),))
        name = request.path_params.get("queue")
        if name is not None:
            _check(viewer, route, name, request)
        return await route.handler(site, viewer, request)

    return _guarded(site, handler)


def _check(viewer: Any, route: PageRoute, name: str, request: Request) -> None:
    try:
        needs(viewer, route.scope, name)
    except RequestRefused:
        address = request.client.host if request.client else "-"
        audit(f"ui {route.path}", caller=viewer.token.id, address=address, queue=name, refused=True)
        raise


async def _error_page(site: Site, request: Request, refused: RequestRefused) -> Response:
    """Return an error as a page. A poll that fails keeps what stands there: the script says so beside it."""
    try:
        viewer = await site.viewer(request)
    except JobqError:
        viewer = None
    page = WebPage(
        template="error.html",
        title="That did not work",
        values={"message": refused.message, "to_do": _WHAT_TO_DO.get(refused.status, ""), "back": _back(request)},
        status=refused.status,
    )
    response = _with_headers(rendered(site, viewer, request, page))
    for name, value in refused.headers:
        response.headers[name] = value
    if refused.status == 503 and request.method == "GET":  # noqa: PLR2004 - as _WHAT_TO_DO says
        response.headers["Refresh"] = str(_TRY_AGAIN_SECONDS)
    return response


def _back(request: Request) -> str:
    """Return where a form was asked for; the browser's own way back leads to a page that it has not kept."""
    asked = getattr(request.state, "back", "")
    return enter.ours(asked) if asked else ""


def _with_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response
