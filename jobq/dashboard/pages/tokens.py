"""The tokens of the place. None is made here: a session that was stolen must not become a lasting one."""

from starlette.requests import Request
from starlette.responses import Response

from jobq.dashboard.forms import form_of
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage, link, needs, to
from jobq.servable import Servable
from jobq.server import tokens
from jobq.server.error_responses import RequestRefused
from jobq.server.tokens import ALL_QUEUES, Scope, TokenRecord

PAGES = PageRoutes()


@PAGES.add("/tokens", Scope.ADMIN)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:  # noqa: ARG001 - as all pages
    """Show who was let in, and to what."""
    needs(viewer, Scope.ADMIN, ALL_QUEUES)
    found = await site.snapshots.get(("tokens",), lambda: tokens.records(_store(site)))
    return WebPage(template="tokens.html", title="Tokens", values={"found": found})


@PAGES.add("/tokens/ask", Scope.ADMIN, changes=True)
async def ask(site: Site, viewer: Viewer, request: Request) -> WebPage:
    """Show which one will be revoked."""
    record = await _asked(site, viewer, dict(await form_of(request, viewer)).get("id", ""))
    values = {"record": record, "proof": viewer.proof(f"revoke {record.id}")}
    return WebPage(template="confirm_token.html", title="Revoke a token", values=values)


@PAGES.add("/tokens/revoke", Scope.ADMIN, changes=True)
async def revoke(site: Site, viewer: Viewer, request: Request) -> Response:
    """Revoke it; services let it in for two more seconds at most."""
    given = dict(await form_of(request, viewer))
    record = await _asked(site, viewer, given.get("id", ""))
    if not viewer.is_proof(given.get("proof", ""), f"revoke {record.id}"):
        raise RequestRefused(403, "forbidden", "this is not what was shown; choose again")
    address = request.client.host if request.client else "-"
    tokens.audit("ui revoke", caller=viewer.token.id, address=address, token=record.id)
    await tokens.revoke(_store(site), record.id)
    site.snapshots.forget()
    return to(link("tokens"))


def _store(site: Site) -> Servable:
    store = site.store
    if store is None:
        raise RequestRefused(404, "not_here", "tokens are kept by the service alone; its own dashboard shows them")
    return store


async def _asked(site: Site, viewer: Viewer, token_id: str) -> TokenRecord:
    needs(viewer, Scope.ADMIN, ALL_QUEUES)
    found = next((each for each in await tokens.records(_store(site)) if each.id == token_id), None)
    if found is None:
        raise RequestRefused(404, "no_such_token", "there is no such token; it may have been revoked")
    return found
