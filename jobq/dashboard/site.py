"""What all pages share: who looks, what the store has said a moment ago, and how an answer is written."""

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from jobq.dashboard import text
from jobq.dashboard.bulk import BulkActions
from jobq.dashboard.guard import Guard
from jobq.dashboard.session import Sessions, Viewer
from jobq.dashboard.snapshots import Snapshots
from jobq.formats import sizes
from jobq.journal.records import TaskState
from jobq.journal.views import Views
from jobq.server.backend_pool import BackendPool
from jobq.server.error_responses import RequestRefused
from jobq.server.shares import RateShare
from jobq.server.tokens import Scope, TokenBook

ROOT: Final = "/ui"
_MOST_FORM_BYTES: Final = 256 * 1024  # 500 ids of 100 characters, four times over
_RATE, _BURST = 20.0, 60.0  # requests a second of one session
_STATIC: Final = resources.files("jobq.dashboard") / "static"


@dataclass(frozen=True, kw_only=True)
class WebPage:
    """A page, before it is written.

    Attributes:
        template: of what is polled, below templates/.
        title: of the page.
        values: for the templates.
        head: template of what stands before it and is not polled, such as a form; "" = nothing does.
        queue: whose page it is; "" = no single one's.
        seconds: how often it is polled; 0 = never.
        command: the equal `jobq` command.
        actions: whether rows of it can be chosen, for `act`.
        status: of HTTP.
    """

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    head: str = ""
    queue: str = ""
    seconds: int = 0
    command: str = ""
    actions: bool = False
    status: int = 200


@dataclass(frozen=True, kw_only=True)
class Site:
    """What the pages of one service use.

    Attributes:
        places: the backends, for what is changed.
        views: what is looked at; entered.
        tokens: that are good.
        sessions: of those who are signed in.
        guard: which requests are answered.
        bulk: does what is done to all tasks of a filter; started.
        location: how the place is called, without secrets.
        is_local: whether this is `jobq ui`, which asks for no token.
    """

    places: BackendPool
    views: Views
    tokens: TokenBook
    sessions: Sessions
    guard: Guard
    location: str
    bulk: BulkActions
    is_local: bool = False
    snapshots: Snapshots = field(default_factory=Snapshots)
    rate: RateShare = field(default_factory=lambda: RateShare(_RATE, _BURST))
    bad_tokens: RateShare = field(default_factory=lambda: RateShare(5.0, 20.0))

    async def viewer(self, request: Request) -> Viewer | None:
        """Return who is signed in; None = nobody."""
        cookie = request.cookies.get(self.guard.cookie_name(request.headers.get("host", "")), "")
        return await self.sessions.viewer(cookie) if cookie else None


Handler = Callable[[Site, Viewer, Request], Awaitable[WebPage | Response]]


@dataclass(frozen=True, kw_only=True)
class PageRoute:
    """A page's address below ROOT, what its viewer must be allowed, and what makes it."""

    path: str
    handler: Handler
    scope: Scope
    changes: bool = False


class PageRoutes(list[PageRoute]):
    """The pages of one module."""

    def add(self, path: str, scope: Scope, *, changes: bool = False) -> Callable[[Handler], Handler]:
        """Add a page; of a queue where the path has one, else of any on which the viewer is allowed this.

        Args:
            path: below ROOT.
            scope: that the viewer needs.
            changes: whether it is a POST.
        """

        def added(handler: Handler) -> Handler:
            self.append(PageRoute(path=path, handler=handler, scope=scope, changes=changes))
            return handler

        return added


def needs(viewer: Viewer, scope: Scope, queue: str) -> None:
    """Raise RequestRefused (403) for who may not do this."""
    if not viewer.may(scope, queue):
        where = f"queue {text.visible(queue)}" if queue else "any queue"
        raise RequestRefused(403, "forbidden", f"your token lacks the scope {scope} on {where}")


async def form_of(request: Request, viewer: Viewer | None) -> list[tuple[str, str]]:
    """Return the fields of a form that was sent.

    Args:
        request: a POST.
        viewer: whose form it must be; None = nobody's yet, where he signs in.

    Raises:
        RequestRefused: it is too large, no form, or was not made for this session.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_FORM_BYTES:
            raise RequestRefused(413, "too_large", "that is too much at once; choose fewer")
    try:
        fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), encoding="utf-8")
    except ValueError:
        raise RequestRefused(400, "malformed_request", "that is no form") from None
    if viewer is not None and not viewer.is_proof(dict(fields).get("form", ""), "form"):
        raise RequestRefused(403, "forbidden", "this form is of another session; load the page again")
    return fields


def to(address: str, **query: str) -> RedirectResponse:
    """Return the answer to a change: where to look now.

    Args:
        address: of a page of ours.
        **query: to add to it.
    """
    mark = "&" if "?" in address else "?"
    return RedirectResponse(address + (mark + urlencode(query) if query else ""), status_code=303)


def link(*parts: str, **query: Any) -> str:
    """Return an address below ROOT; parts are quoted, empty values of the query left out."""
    path = "/".join(quote(part, safe="") for part in parts)
    words = urlencode([(name, value) for name, value in query.items() if value not in ("", None)])
    return f"{ROOT}/{path}" + (f"?{words}" if words else "")


def static_link(name: str) -> str:
    """Return the address of a static file, which changes with what is in it."""
    return f"{ROOT}/static/{_hash_of(name)}/{name}"


_hashes: Final[dict[str, str]] = {}


def _hash_of(name: str) -> str:
    if name not in _hashes:
        _hashes[name] = hashlib.sha256(static_file(name)).hexdigest()[:16]
    return _hashes[name]


def static_file(name: str) -> bytes:
    """Return a static file; raises FileNotFoundError."""
    return _STATIC.joinpath(name).read_bytes()


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(str(resources.files("jobq.dashboard") / "templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "visible": text.visible,
        "block": text.block,
        "capped": text.capped,
        "moment": text.moment,
        "coarse": text.coarse,
        "duration": text.duration,
        "size": sizes.show,
        "sign": lambda state: text.SIGNS[TaskState(state)],
    }
    made.globals |= {"link": link, "static": static_link, "relative": text.relative, "root": ROOT}
    return made


_templates: Final = _environment()


def rendered(site: Site, viewer: Viewer | None, request: Request, page: WebPage) -> Response:
    """Return a page as HTML: whole, or to a poll what is polled alone, and nothing where that is as before."""

    def next_page(after: str) -> str:
        query = [
            (name, value) for name, value in request.query_params.multi_items() if name not in (*_OF_POLL, "after")
        ]
        return f"{request.url.path}?{urlencode([*query, ('after', after)])}"

    values = {
        "now_seconds": time.time(),
        "next_page": next_page,
        "page": page,
        "viewer": viewer,
        "site": site,
        "query": request.query_params,
        "may": lambda scope: viewer is not None and viewer.may(Scope(scope), page.queue),
        **page.values,
    }
    live = Markup(_templates.get_template(page.template).render(values))  # noqa: S704 - what Jinja has escaped
    had = hashlib.sha256(live.encode()).hexdigest()[:16]
    query = QueryParams([(name, value) for name, value in request.query_params.multi_items() if name not in _OF_POLL])
    values |= {"live": live, "poll": f"{request.url.path}?{urlencode([*query.multi_items(), ('had', had)])}"}
    if "hx-request" in request.headers:
        if request.query_params.get("had") == had:
            return Response(status_code=204)
        return HTMLResponse(_templates.get_template("live.html").render(values), page.status)
    values["here"] = f"{request.url.path}?{urlencode(query.multi_items())}".removesuffix("?")
    said = request.query_params.get("said", "")
    is_said = viewer is not None and viewer.is_proof(request.query_params.get("proof", ""), f"said {said}")
    values |= {"said": said if is_said else "", "now": time.strftime("%H:%M:%S")}
    return HTMLResponse(_templates.get_template("frame.html").render(values), page.status)


_OF_POLL: Final = ("had", "said", "proof")
