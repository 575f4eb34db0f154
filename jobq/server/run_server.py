"""Running the service: the socket, signals, and an end that answers all who wait."""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn

from jobq.errors import ConfigurationError
from jobq.local_service import is_loopback, token_file, token_folder
from jobq.racing import first_done
from jobq.server.app import App, Limits
from jobq.server.backend_pool import ServedPool
from jobq.server.load_generator import GeneratorLoop
from jobq.server.slow_client_limits import MOST_CONNECTIONS, SlowClientProtocol, accept_tls
from jobq.server.tokens import TokenBook, alone_in, write_owners_token
from jobq.settings import Settings

_log: Final = logging.getLogger("jobq.server")
_BACKLOG: Final = 2048
_KEEP_ALIVE_SECONDS: Final = 75  # longer than proxies keep theirs, so that they close first
_STOP_SECONDS: Final = 20
_OTHER_DESCRIPTORS: Final = 100  # beside the connections of clients: to the database, of the process


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Where and how to listen.

    Attributes:
        host: name or address.
        port: 0 = one that is free.
        certificate, key: files of TLS; None = plain HTTP.
        is_open: whether everyone who reaches it is let in, as long as no token was made.
        limits: of each request.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: str | None = None
    key: str | None = None
    is_open: bool = False
    limits: Limits = field(default_factory=Limits)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to our caller."""
        yield


Application = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]  # ASGI
Front = Callable[[Application, ServedPool, TokenBook], contextlib.AbstractAsyncContextManager[Application]]


async def serve(
    spec: str,
    settings: Settings,
    listening: ListenOptions,
    stop: asyncio.Event,
    on_ready: Callable[[str, bool, Path | None], None],
    front: Front | None = None,
) -> None:
    """Serve a place until `stop` is set; then refuse what is new, answer what is under way, and return.

    Args:
        spec: names the place.
        settings: for its backends.
        listening: where.
        stop: ends it.
        on_ready: called once it listens: with the URL, whether tokens are needed, and the file that has the owner's.
        front: makes what is served of the service, its queues and its tokens, such as the dashboard before it.

    Raises:
        ConfigurationError: it may not listen there without tokens, cannot, or the backend cannot be served.
        JobqError: the store cannot be reached.
    """
    places = ServedPool(spec, settings)
    try:
        await places.open()
        is_local = is_loopback(listening.host)
        if listening.is_open and not is_local:
            raise ConfigurationError(
                f"{listening.host} can be reached by others: with --no-token all of them could run commands on your"
                " workers. Leave one of --host and --no-token away"
            )
        tokens = TokenBook(places.root)
        has_tokens = await tokens.is_kept()
        if not is_local and not has_tokens:
            raise ConfigurationError(
                f"{listening.host} can be reached by others, and there is no token yet: all who reach it could run"
                " commands on your workers. Make one with `jobq serve token create SPEC --scope ...`, or leave --host"
                " away"
            )
        tls_of(listening)
        own = token_folder(settings) if is_local and not listening.is_open else None
        # In turn: of two that were bound to one port the second would leave its token in place of the first one's.
        with alone_in(own) if own is not None else contextlib.nullcontext():
            listener = bound(listening)
            address, port = listener.getsockname()[:2]
            file = None if own is None else token_file(settings, address, port)
            if file is not None:
                tokens.add(write_owners_token(file))
            listen(listener, listening)  # now: who reaches it finds the token
        with listener:
            app = App(places, needs_tokens=not listening.is_open, tokens=tokens, limits=listening.limits)
            scheme = "https" if listening.certificate else "http"
            url = f"{scheme}://{shown(listening.host)}:{port}"
            needs_tokens = has_tokens or not listening.is_open
            generator = asyncio.create_task(GeneratorLoop(app.service, settings).run(), name="generator")
            made = contextlib.nullcontext(app) if front is None else front(app, places, tokens)
            try:
                async with made as served:
                    await run(
                        served, listener, listening, stop, lambda: on_ready(url, needs_tokens, file), on_stop=app.stop
                    )
            finally:
                generator.cancel()
                await asyncio.wait({generator})
    finally:
        await places.close()


async def run(
    app: Application,
    listener: socket.socket,
    listening: ListenOptions,
    stop: asyncio.Event,
    on_ready: Callable[[], None],
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve an application until `stop` is set, and answer what is under way.

    Args:
        app: speaks ASGI.
        listener: bound, and listening.
        listening: how.
        stop: ends it.
        on_ready: called once it answers.
        on_stop: called when it is to end: lets what waits be answered.
    """
    _allow_descriptors()
    context = tls_of(listening)
    config = uvicorn.Config(
        app,
        http=SlowClientProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve([] if context is not None else [listener]), name="http server")
    stopping = asyncio.create_task(stop.wait(), name="http server stops")
    while not server.started and not serving.done():  # noqa: ASYNC110 - as below
        await asyncio.sleep(0.01)  # uvicorn has no event for it
    watched: list[asyncio.Task[Any]] = [serving, stopping]
    if not serving.done():
        if context is not None:
            make = partial(SlowClientProtocol, config, server.server_state, server.lifespan.state)
            watched.append(asyncio.create_task(accept_tls(listener, context, make), name="accepts for TLS"))
        on_ready()
    try:
        await first_done(*watched)
    finally:
        for each in watched[1:]:
            each.cancel()
        on_stop()
        server.should_exit = True
        await serving
    for each in watched:
        if each.done() and not each.cancelled():
            each.result()  # what has failed is fatal


def tls_of(listening: ListenOptions) -> ssl.SSLContext | None:
    """Return what TLS is spoken with; None = none is. Raises ConfigurationError."""
    if listening.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(listening.certificate, listening.key)
    except OSError as error:  # of TLS too
        what = f"--certificate {listening.certificate} with --key {listening.key}"
        raise ConfigurationError(f"{what} cannot be used: {error.strerror or error}") from None
    return context


def bound(listening: ListenOptions) -> socket.socket:
    """Return a socket that is bound, and does not listen yet; raises ConfigurationError."""
    try:
        found = socket.getaddrinfo(listening.host, listening.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {listening.host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _cannot_listen(listening, error) from None
    return listener


def listen(listener: socket.socket, listening: ListenOptions) -> None:
    """Let others reach it; raises ConfigurationError, and closes it then."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(listening, error) from None


def _cannot_listen(listening: ListenOptions, error: OSError) -> ConfigurationError:
    why = error.strerror or error
    return ConfigurationError(f"cannot listen on {listening.host} port {listening.port}: {why}; name another --port")


def _allow_descriptors() -> None:
    """Raise the soft limit of open files, 1024 on many systems, to the hard one: strangers' connections take fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < MOST_CONNECTIONS + _OTHER_DESCRIPTORS:
        _log.warning(
            "only %d files may be open, for up to %d connections: raise the limit (LimitNOFILE of systemd)",
            hard,
            MOST_CONNECTIONS,
        )


def shown(host: str) -> str:
    """Return a host as a URL has it."""
    return f"[{host}]" if ":" in host else host
