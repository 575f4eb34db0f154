"""`jobq serve SPEC`: the HTTP service, and its tokens."""

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli.common import (
    ExampleCommand,
    SuggestingGroup,
    json_option,
    read_settings,
    run_async,
    spec_of,
    with_queue,
)
from jobq.cli.display import terminal
from jobq.cli.interrupts import heard
from jobq.cli.serving import log_to_stderr, missing_extra, take_spec

if TYPE_CHECKING:
    from pathlib import Path

    from jobq.backend import Backend
    from jobq.server.run_server import Front, ListenOptions
    from jobq.server.tokens import TokenRecord
    from jobq.settings import Settings

_SCOPES: Final = ("enqueue", "lease", "settle", "watch", "view", "read", "operate", "admin")
_PUBLIC_URL: Final = re.compile(r"https://[A-Za-z0-9.\-\[\]:]+")
_HELP: Final = """Serve the queues of a place over HTTP until Ctrl-C or SIGTERM, so that workers need no rights there.

SPEC names a queue of an SQL backend, as in `jobq SPEC worker`; all queues beside it are served too. Workers elsewhere
use them as http://HOST:PORT/QUEUE. Several of these may serve one PostgreSQL.

It listens on this machine alone, for your own commands, which find a token that it makes at each start; for others, and
to listen anywhere else, make tokens (`jobq serve token create`). Put TLS before it, or give it --certificate and --key.
Needs pip install 'jobq[server]'.
"""


class ServeGroup(SuggestingGroup):
    """`jobq serve [SPEC]`, and below it `token`: a first argument that is no command is the place to serve."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the spec out of the arguments; click would take it for a command."""
        places = [index for index, word in enumerate(args) if not word.startswith("-")]
        options = {name for option in self.params for name in option.opts if not getattr(option, "is_flag", True)}
        first = next((index for index in places if index == 0 or args[index - 1] not in options), None)
        if first is not None and args[first] not in self.commands:
            take_spec(ctx, args[first])
            args = [*args[:first], *args[first + 1 :]]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the shape of a command line."""
        return ["[OPTIONS]", "[SPEC]"]


@click.group(
    cls=ServeGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    help=_HELP,
    examples=(
        "jobq serve demo",
        "jobq demo serve --port 9000",
        "jobq serve postgresql://jobq@db.internal/work/demo --host 0.0.0.0",
        "jobq serve demo --ui",
    ),
)
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Where to listen. Default: 127.0.0.1.")
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65535), default=8000,
    help="Where to listen; 0 = one that is free. Default: 8000.",
)  # fmt: skip
@click.option("--certificate", metavar="FILE", help="Serve HTTPS with this certificate (and its chain).")
@click.option("--key", metavar="FILE", help="The certificate's key.")
@click.option(
    "--no-token",
    "is_open",
    is_flag=True,
    help="Let in everyone on this machine: each of its users and programs may run commands on your workers.",
)
@click.option(
    "--rate-limit", metavar="N", type=click.FloatRange(min=1), default=5000.0,
    help="Requests a second of one token, or of one address without tokens. Default: 5000.",
)  # fmt: skip
@click.option("--ui", "with_ui", is_flag=True, help="Show the dashboard, too, at /ui/. Needs pip install 'jobq[ui]'.")
@click.option(
    "--public-url", metavar="URL",
    help="https://NAME under which browsers reach the dashboard; needed where it is not on this machine alone.",
)  # fmt: skip
@json_option
@click.pass_context
def serve(
    ctx: click.Context,
    host: str,
    port: int,
    certificate: str | None,
    key: str | None,
    is_open: bool,
    rate_limit: float,
    with_ui: bool,
    public_url: str | None,
    as_json: bool,
) -> int | None:
    """Serve; see _HELP."""
    if ctx.invoked_subcommand is not None:
        return None
    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key go together")
    if public_url is not None and not with_ui:
        raise click.UsageError("--public-url is for --ui")
    settings = read_settings()
    spec = spec_of(ctx, settings)
    with missing_extra("the service", "server"):
        from jobq.server.app import Limits  # noqa: PLC0415 - the extra, and `jobq --help` must not pay for it
        from jobq.server.run_server import ListenOptions  # noqa: PLC0415 - as above
    before = _dashboard(spec, settings, host, public_url, is_tls=certificate is not None) if with_ui else None
    limits = Limits(rate=rate_limit, burst=2 * rate_limit)
    listening = ListenOptions(host=host, port=port, certificate=certificate, key=key, is_open=is_open, limits=limits)
    with log_to_stderr():
        return run_async(_serve(spec, settings, listening, before, as_json=as_json), "fastest")


def _dashboard(spec: str, settings: "Settings", host: str, public_url: str | None, *, is_tls: bool) -> "Front":
    """Return what puts the dashboard before the service."""
    from jobq.local_service import is_loopback  # noqa: PLC0415 - as above

    if public_url is None and not is_loopback(host):
        raise click.UsageError(
            f"--ui on {host} needs --public-url https://NAME: the address by which browsers reach it, by TLS of a proxy"
            " or of --certificate"
        )
    if public_url is not None and not _PUBLIC_URL.fullmatch(public_url):
        raise click.UsageError(f"--public-url {public_url!r}: write https://NAME or https://NAME:PORT, with no path")
    with missing_extra("the dashboard", "ui"):
        from jobq.dashboard.run_ui import before_service  # noqa: PLC0415 - as above
    return before_service(spec, settings, public_url, is_tls=is_tls)


async def _serve(
    spec: str, settings: "Settings", listening: "ListenOptions", before: "Front | None", *, as_json: bool
) -> int:
    """Serve until a signal; that is a good end."""
    from jobq.server.run_server import serve as serve_place  # noqa: PLC0415 - as above

    stop = asyncio.Event()

    def announce(url: str, wants_tokens: bool, file: "Path | None") -> None:
        if as_json:
            terminal.put_json({"url": url, "tokens": wants_tokens, "token_file": None if file is None else str(file)})
        else:
            terminal.put(url)
            whom = "to those who have a token" if wants_tokens else "to every user and program on this machine"
            if file is not None:
                whom += f"; your own commands find theirs in {file}"
            terminal.say(f"serving {whom}; {url}/openapi.json has what there is. Ctrl-C ends it.")
            if before is not None:
                terminal.say(f"the dashboard is at {url}/ui/; sign in there by a token")
        terminal.flush()

    serving = asyncio.create_task(serve_place(spec, settings, listening, stop, announce, before), name="service")
    with heard() as end:
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            if end.signal is None:
                raise
            stop.set()
            await serving
    return 0


@serve.group(cls=SuggestingGroup, examples=("jobq serve token create demo --scope lease --scope settle",))
def token() -> None:
    """Make, list and revoke the tokens of a service; they are kept, as hashes, in the database that it serves."""


def _of_place(context: click.Context, spec: str | None, work: Any) -> int:
    if spec is not None:
        take_spec(context, spec)

    async def connected(backend: "Backend") -> int:
        from jobq.errors import QueueNotFound  # noqa: PLC0415 - `jobq --help` needs none of it
        from jobq.servable import served  # noqa: PLC0415 - as above

        store = served(backend)
        try:
            await store.document("tokens")
        except QueueNotFound:
            await backend.create(exist_ok=True)
        code: int = await work(store)
        return code

    return with_queue(context, connected)


@token.command(
    "create",
    cls=ExampleCommand,
    examples=(
        "jobq serve token create demo --scope lease --scope settle --name workers",
        "jobq serve token create demo --scope enqueue --only-queue demo",
        "export JOBQ_HTTP_TOKEN=$(jobq serve token create demo --scope read)",
    ),
)
@click.argument("spec", required=False)
@click.option(
    "--scope", "scopes", type=click.Choice(_SCOPES), multiple=True, required=True,
    help="What it permits; may be repeated. A worker needs lease and settle.",
)  # fmt: skip
@click.option(
    "--only-queue", "queues", metavar="QUEUE", multiple=True,
    help="On which queues; may be repeated. Default: on all of this place.",
)  # fmt: skip
@click.option("--name", metavar="TEXT", default="", help="For whom it is, to be listed.")
@json_option
@click.pass_context
def create(
    ctx: click.Context, spec: str | None, scopes: tuple[str, ...], queues: tuple[str, ...], name: str, as_json: bool
) -> int:
    """Make a token and print it: it is never to be had again. Give it to its user in JOBQ_HTTP_TOKEN."""

    async def work(store: Any) -> int:
        from jobq.server import tokens  # noqa: PLC0415 - `jobq --help` needs none of it

        record, made = await tokens.create(store, name, tuple(dict.fromkeys(scopes)), queues or (tokens.ALL_QUEUES,))
        if as_json:
            terminal.put_json(_as_json(record) | {"token": made})
        else:
            terminal.put(made)
            terminal.say(f"token {record.id}: {_line(record)}; it is not shown again")
        return 0

    return _of_place(ctx, spec, work)


@token.command("list", cls=ExampleCommand, examples=("jobq serve token list demo", "jobq demo serve token list --json"))
@click.argument("spec", required=False)
@json_option
@click.pass_context
def list_(ctx: click.Context, spec: str | None, as_json: bool) -> int:
    """List the tokens, without their secrets."""

    async def work(store: Any) -> int:
        from jobq.server import tokens  # noqa: PLC0415 - `jobq --help` needs none of it

        for record in await tokens.records(store):
            if as_json:
                terminal.put_json(_as_json(record))
            else:
                terminal.put(f"{record.id}  {_line(record)}")
        return 0

    return _of_place(ctx, spec, work)


@token.command(
    "revoke",
    cls=ExampleCommand,
    examples=("jobq serve token revoke demo 0123456789ab", "jobq demo serve token revoke 0123456789ab --json"),
)
@click.argument("words", nargs=-1, required=True, metavar="[SPEC] ID")
@json_option
@click.pass_context
def revoke(ctx: click.Context, words: tuple[str, ...], as_json: bool) -> int:
    """Delete a token. Services that run take it for two seconds more."""
    if len(words) > 2:  # noqa: PLR2004 - a spec and an id
        raise click.UsageError("name one token: jobq serve token revoke SPEC ID", ctx)
    spec, token_id = (words[0], words[1]) if len(words) > 1 else (None, words[0])

    async def work(store: Any) -> int:
        from jobq.server import tokens  # noqa: PLC0415 - `jobq --help` needs none of it

        record = await tokens.revoke(store, token_id)
        if record is None:
            message = f"there is no token {token_id!r} here; `jobq serve token list` names them"
            return terminal.not_found(message, as_json=as_json)
        if as_json:
            terminal.put_json(_as_json(record))
        else:
            terminal.put(f"revoked {record.id}  {_line(record)}")
        return 0

    return _of_place(ctx, spec, work)


def _line(record: "TokenRecord") -> str:
    where = "all queues" if "*" in record.queues else f"queue {', '.join(record.queues)}"
    name = f"  {terminal.visible(record.name)}" if record.name else ""
    return f"{', '.join(record.scopes)} on {where}{name}"


def _as_json(record: "TokenRecord") -> dict[str, Any]:
    from jobq.cli.display import format_task  # noqa: PLC0415 - `jobq --help` needs none of it

    return {
        "id": record.id,
        "name": record.name,
        "scopes": list(record.scopes),
        "queues": list(record.queues),
        "created": format_task.moment(record.created),
    }
