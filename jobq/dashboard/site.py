"""What all pages share: who looks, what the store has said a moment ago, and how an answer is written."""

import hashlib
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from jobq.dashboard import filters, text
from jobq.dashboard.bulk import BulkActions
from jobq.dashboard.guard import Guard
from jobq.dashboard.session import Sessions, Viewer
from jobq.dashboard.snapshots import Snapshots
from jobq.dashboard.static_files import static_link
from jobq.formats import sizes, task_ids
from jobq.journal.records import TaskState
from jobq.journal.views import BilledViews, Views
from jobq.servable import Servable
from jobq.server.backend_pool import BackendPool
from jobq.server.error_responses import RequestRefused
from jobq.server.shares import RateShare
from jobq.server.tokens import Scope, TokenBook
from jobq.spec import QueueSpec

ROOT: Final = "/ui"
_TOLD_SECONDS: Final = 15.0
_RATE, _BURST = 20.0, 60.0  # requests a second of one session


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
        bulk: does what is done to all tasks of a filter; started. None = that is not done from here.
        place: the spec, which holds no secrets, of a queue there.
        is_local: whether this is `jobq ui`, which asks for no token.
    """

    places: BackendPool
    views: Views
    tokens: TokenBook
    sessions: Sessions
    guard: Guard
    place: QueueSpec
    bulk: BulkActions | None
    is_local: bool = False
    snapshots: Snapshots = field(default_factory=Snapshots)
    rate: RateShare = field(default_factory=lambda: RateShare(_RATE, _BURST))
    bad_tokens: RateShare = field(default_factory=lambda: RateShare(5.0, 20.0))

    @property
    def store(self) -> Servable | None:
        """What keeps the documents of the place; None = a service does, and nobody else sees them."""
        return self.places.root if isinstance(self.places.root, Servable) else None

    @property
    def refresh_seconds(self) -> int:
        """No page looks again sooner; 0 = looks cost nobody anything."""
        return self.views.refresh_seconds if isinstance(self.views, BilledViews) else 0

    @property
    def counts_alone(self) -> str:
        """What cannot be looked at here but counts, and how it could; "" = all can."""
        return self.views.counts_alone if isinstance(self.views, BilledViews) else ""

    @property
    def location(self) -> str:
        """How the place is called on pages."""
        return self.place.location or "the queues of this machine"

    def command(self, queue: str, words: str) -> str:
        """Return the `jobq` command for a queue of this place.

        Args:
            queue: its name.
            words: that follow, quoted.
        """
        return f"jobq {shlex.quote(str(replace(self.place, queue=queue)))} {words}"

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


def to(address: str, **query: str) -> RedirectResponse:
    """Return the answer to a change: where to look now.

    Args:
        address: of a page of ours.
        **query: to add to it.
    """
    mark = "&" if "?" in address else "?"
    return RedirectResponse(address + (mark + urlencode(query) if query else ""), status_code=303)


def told(viewer: Viewer, address: str, said: str) -> RedirectResponse:
    """Return the answer to a change: where to look, with what came of it, which nobody else can have written there.

    Args:
        viewer: to whom it is told, and for a moment: a page that is loaded again later does not repeat it.
        address: of a page of ours.
        said: what came of it.
    """
    at = str(int(time.time()))
    return to(address, said=said, at=at, proof=viewer.proof(f"said {at} {said}"))


def _told(viewer: Viewer | None, query: QueryParams) -> str:
    """Return what `told` tells by an address; "" = nothing, or it was told a while ago."""
    said, at, proof = (query.get(name, "") for name in ("said", "at", "proof"))
    if viewer is None or not viewer.is_proof(proof, f"said {at} {said}"):
        return ""
    return said if time.time() - int(at) < _TOLD_SECONDS else ""


def link(*parts: str, **query: Any) -> str:
    """Return an address below ROOT; parts are quoted, empty values of the query left out."""
    path = "/".join(quote(part, safe="") for part in parts)
    words = urlencode([(name, value) for name, value in query.items() if value not in ("", None)])
    return f"{ROOT}/{path}" + (f"?{words}" if words else "")


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
        "deed": text.deed,
        "conditions": text.conditions,
        "size": sizes.show,
        "sign": lambda state: text.SIGNS[TaskState(state)],
    }
    made.tests["task_id"] = lambda value: task_ids.VALID.fullmatch(value) is not None
    made.globals |= {"link": link, "static": static_link, "relative": text.relative, "exactly": filters.exactly}
    return made


_templates: Final = _environment()


def rendered(site: Site, viewer: Viewer | None, request: Request, page: WebPage) -> Response:
    """Return a page as HTML: whole, or to a poll what is polled alone, and nothing where that is as before."""
    if page.seconds:
        page = replace(page, seconds=max(page.seconds, site.refresh_seconds))

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
        "capabilities": site.places.root.capabilities,
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
    values |= {"said": _told(viewer, request.query_params), "now": time.strftime("%H:%M:%S")}
    return HTMLResponse(_templates.get_template("frame.html").render(values), page.status)


_OF_POLL: Final = ("had", "said", "at", "proof")
