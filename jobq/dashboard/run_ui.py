"""`jobq ui`: the dashboard of one user on his own machine, entered by a link that is good once."""

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from jobq.backend import Backend
from jobq.dashboard.app import made
from jobq.dashboard.bulk import BulkActions
from jobq.dashboard.front import front
from jobq.dashboard.guard import Guard
from jobq.dashboard.session import Sessions, shared_key
from jobq.dashboard.site import ROOT, Site
from jobq.dashboard.watching import watched
from jobq.errors import ConfigurationError
from jobq.journal.views import BilledViews, Views, views_of
from jobq.pausing import this_user
from jobq.servable import Rights, SaysRights, Servable
from jobq.server import run_server
from jobq.server.backend_pool import BackendPool, ServedPool
from jobq.server.run_server import Application, Front, ListenOptions
from jobq.server.tokens import ALL_QUEUES, Scope, TokenBook, TokenRecord, new_token
from jobq.settings import Settings, user_home
from jobq.spec import parse


@asynccontextmanager
async def _bulk(
    places: BackendPool, views: Views, tokens: TokenBook, settings: Settings, *, is_read_only: bool = False
) -> AsyncIterator[BulkActions | None]:
    if not isinstance(places.root, Servable):  # what they are is a document, which a service keeps to itself
        yield None
        return
    made = BulkActions(places, views, tokens, settings)
    if not is_read_only:  # else nothing is changed by it, nor what others have left
        made.start()
    try:
        yield made
    finally:
        await made.aclose()


def before_service(spec: str, settings: Settings, public_url: str | None, *, is_tls: bool) -> Front:
    """Return what puts the dashboard before a service (`jobq serve --ui`).

    Args:
        spec: of the place.
        settings: of what its actions hold.
        public_url: under which browsers reach it; None = on this machine alone.
        is_tls: whether the service speaks TLS itself.
    """

    @asynccontextmanager
    async def both(service: Application, places: ServedPool, tokens: TokenBook) -> AsyncIterator[Application]:
        async with (
            views_of(places.root) as views,
            _bulk(places, views, tokens, settings) as bulk,
            watched(places),
        ):
            site = Site(
                bulk=bulk,
                places=places,
                views=views,
                tokens=tokens,
                sessions=Sessions(tokens, await shared_key(places.root)),
                guard=Guard(public_url=public_url, is_tls=is_tls),
                place=parse(spec),
            )
            yield front(made(site), service)

    return both


async def serve_ui(
    spec: str,
    settings: Settings,
    port: int,
    stop: asyncio.Event,
    on_ready: Callable[[str, Callable[[], str]], None],
    *,
    is_read_only: bool,
) -> None:
    """Serve the dashboard alone, on loopback, until `stop` is set.

    Args:
        spec: names the place.
        settings: for its backends.
        port: 0 = one that is free.
        stop: ends it.
        on_ready: called once it answers: with its URL, and what makes a link that is good once.
        is_read_only: whether nothing can be changed by it.

    Raises:
        ConfigurationError: it cannot listen there, or the place cannot be looked at.
        JobqError: the store cannot be reached.
    """
    places = BackendPool(spec, settings)
    listening = ListenOptions(port=port)
    try:
        await places.open()
        store = places.root if isinstance(places.root, Servable) else None
        tokens = TokenBook(store)
        record = await _own_record(places.root, is_read_only=is_read_only)
        tokens.add(record)
        sessions = Sessions(tokens, secrets.token_bytes(32))  # this process's alone
        listener = run_server.bound(listening)
        run_server.listen(listener, listening)
        url = f"http://{listening.host}:{listener.getsockname()[1]}"
        with listener:
            async with (
                views_of(places.root) as views,
                _bulk(places, views, tokens, settings, is_read_only=is_read_only) as bulk,
                # Else its service does, or, where each look is billed, its workers alone.
                watched(places, is_read_only=is_read_only or store is None or isinstance(views, BilledViews)),
            ):
                site = Site(
                    bulk=bulk,
                    places=places,
                    views=views,
                    tokens=tokens,
                    sessions=sessions,
                    guard=Guard(),
                    place=parse(spec),
                    is_local=True,
                )

                def link() -> str:
                    return f"{url}{ROOT}/enter?once={sessions.link(record)}"

                await run_server.run(
                    front(made(site), None), listener, listening, stop, lambda: on_ready(f"{url}{ROOT}/", link)
                )
    finally:
        await places.close()


async def _own_record(root: Backend, *, is_read_only: bool) -> TokenRecord:
    """Return a token, of which nobody has the secret, that permits what may be done to the place by this process."""
    rights = await root.rights() if isinstance(root, SaysRights) else None
    if rights is None:
        rights = Rights(id="ui", name="", scopes=tuple(Scope), queues=(ALL_QUEUES,))
    scopes = rights.scopes
    if is_read_only:
        scopes = tuple(each for each in scopes if each in (Scope.WATCH, Scope.VIEW, Scope.READ))
        scopes = (Scope.VIEW,) if set(scopes) - {Scope.WATCH} else scopes
    record, _ = new_token(rights.id, this_user(), scopes, rights.queues)
    return record


def forwarding_file(settings: Settings, link: str) -> Path:
    """Return a file that leads a browser to a link, and that nobody else can read: a command line all can.

    Raises:
        ConfigurationError: it cannot be written.
    """
    folder = user_home(settings) / "ui"
    page = (
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={link}"><title>jobq</title>'
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in folder.glob("*.html"):  # their links are used, or too old
            with contextlib.suppress(OSError):
                old.unlink()
        descriptor, name = tempfile.mkstemp(suffix=".html", dir=folder)  # of mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise ConfigurationError(
            f"the page that opens the dashboard cannot be written to {folder}: {error.strerror or error}; point"
            " JOBQ_HOME to a folder of yours, or open the link by hand (--no-open)"
        ) from None
    return Path(name)
