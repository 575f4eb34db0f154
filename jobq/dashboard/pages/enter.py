"""Signing in, by a token or by a link that is good once; and out."""

from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.dashboard.forms import form_of
from jobq.dashboard.session import SESSION_SECONDS
from jobq.dashboard.site import ROOT, Site, WebPage, link, to
from jobq.server.error_responses import RequestRefused
from jobq.server.tokens import TokenRecord, audit


async def show(site: Site, request: Request) -> WebPage | Response:
    """Show the form; for a link that is good once, a page with one button, which a script presses."""
    if await site.viewer(request) is not None and "once" not in request.query_params:
        return RedirectResponse(ours(request.query_params.get("next", "")), status_code=303)
    return WebPage(
        template="enter.html",
        title="Sign in",
        values={"once": request.query_params.get("once", ""), "next": ours(request.query_params.get("next", ""))},
    )


async def sign_in(site: Site, request: Request) -> Response:
    """Begin a session."""
    fields = dict(await form_of(request, None))
    address = request.client.host if request.client else "-"
    token = fields.get("token", "").strip()
    record: TokenRecord | None
    if once := fields.get("once"):
        record = site.sessions.use_link(once)
        wrong = "this link was used, or is older than a minute; press Enter where `jobq ui` runs for a new one"
    else:
        record = await site.tokens.holder_of(token)
        wrong = "this is no good token; `jobq serve token create SPEC --scope view` makes one"
    if record is None:
        if waits := site.bad_tokens.wait(address):  # unaudited: who guesses must not fill the log
            raise RequestRefused(429, "too_many_requests", "slower", headers=(("Retry-After", str(int(waits) + 1)),))
        if not once:
            await site.tokens.read_again()
            record = await site.tokens.holder_of(token)
    if record is None:
        audit("ui sign in", address=address, refused=True)
        raise RequestRefused(401, "no_token", wrong)
    audit("ui sign in", caller=record.id, address=address)
    response = RedirectResponse(ours(fields.get("next", "")), status_code=303)
    response.set_cookie(
        site.guard.cookie_name(request.headers.get("host", "")),
        site.sessions.begin(record),
        max_age=int(SESSION_SECONDS),
        secure=site.guard.is_secure,
        httponly=True,
        samesite="lax",
    )
    return response


async def sign_out(site: Site, request: Request) -> Response:
    """End the session in this browser."""
    viewer = await site.viewer(request)
    if viewer is not None:
        await form_of(request, viewer)
    response = to(link("enter"))
    name = site.guard.cookie_name(request.headers.get("host", ""))
    response.delete_cookie(name, secure=site.guard.is_secure, httponly=True, samesite="lax")
    return response


def ours(address: str) -> str:
    """Return where to go then: a page of ours, whatever the address says."""
    try:
        found = urlsplit(address)
    except ValueError:  # `http://[`
        return link("")
    is_ours = not found.scheme and not found.netloc and found.path.startswith(f"{ROOT}/") and "\\" not in address
    leads_away = {".", ".."} & set(unquote(found.path).split("/"))
    is_page = is_ours and not leads_away and not found.path.startswith((link("enter"), link("leave")))
    return found._replace(fragment="").geturl() if is_page else link("")
