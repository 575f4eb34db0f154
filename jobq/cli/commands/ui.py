"""`jobq ui SPEC`: the dashboard, on this machine alone."""

import asyncio
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING

import click

from jobq.cli.common import ExampleCommand, json_option, read_settings, run_async, spec_of
from jobq.cli.display import terminal
from jobq.cli.interrupts import heard
from jobq.cli.serving import log_to_stderr, missing_extra, take_spec
from jobq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobq.settings import Settings


@click.command(
    cls=ExampleCommand,
    examples=(
        "jobq ui demo",
        "jobq demo ui --read-only",
        "jobq ui postgresql://jobq@db.internal/work/demo --port 9000 --no-open",
    ),
)
@click.argument("spec", required=False)
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65535), default=0,
    help="Where to listen; 0 = one that is free. Default: 0.",
)  # fmt: skip
@click.option("--no-open", is_flag=True, help="Print the link, and open no browser.")
@click.option("--read-only", is_flag=True, help="Let nothing be changed by it.")
@json_option
@click.pass_context
def ui(ctx: click.Context, spec: str | None, port: int, no_open: bool, read_only: bool, as_json: bool) -> int:
    """Look at the queues of a place in a browser, until Ctrl-C.

    SPEC names a queue, as in `jobq SPEC worker`; all queues beside it are shown too. It listens on this machine alone,
    and is entered by a link that is good once and for a minute; Enter makes another one. For a team use
    `jobq serve SPEC --ui`. Needs pip install 'jobq[ui]'.
    """
    if spec is not None:
        take_spec(ctx, spec)
    settings = read_settings()
    with missing_extra("the dashboard", "ui"):
        import jobq.dashboard.run_ui  # noqa: F401, PLC0415 - the extra, and `jobq --help` must not pay for it
    work = _ui(spec_of(ctx, settings), settings, port, is_read_only=read_only, opens=not no_open, as_json=as_json)
    with log_to_stderr():
        return run_async(work, "fastest")


async def _ui(spec: str, settings: "Settings", port: int, *, is_read_only: bool, opens: bool, as_json: bool) -> int:
    from jobq.dashboard.run_ui import serve_ui  # noqa: PLC0415 - as above

    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def announce(url: str, link: "Callable[[], str]") -> None:
        _show(link(), url, settings, opens=opens, as_json=as_json)
        if sys.stdin is not None and sys.stdin.isatty():

            def pressed() -> None:
                if sys.stdin.readline():
                    _show(link(), url, settings, opens=opens, as_json=as_json)
                else:
                    loop.remove_reader(sys.stdin)

            loop.add_reader(sys.stdin, pressed)

    serving = asyncio.create_task(serve_ui(spec, settings, port, stop, announce, is_read_only=is_read_only), name="ui")
    with heard() as end:
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            if end.signal is None:
                raise
            stop.set()
            await serving
    return 0


def _show(link: str, url: str, settings: "Settings", *, opens: bool, as_json: bool) -> None:
    if as_json:
        terminal.put_json({"url": url, "link": link})
    else:
        terminal.put(link)
        terminal.say("this link is good once, and for a minute; press Enter for another one, Ctrl-C to end")
    terminal.flush()
    if opens:  # by a thread: a browser in the terminal ends only when it is left
        threading.Thread(target=_open, args=(settings, link), name="browser", daemon=True).start()


def _open(settings: "Settings", link: str) -> None:
    from jobq.dashboard.run_ui import forwarding_file  # noqa: PLC0415 - as above

    try:
        is_open = webbrowser.open(forwarding_file(settings, link).as_uri())
    except (webbrowser.Error, ConfigurationError) as error:
        terminal.say(str(error))
        return
    if not is_open:
        terminal.say("no browser was found here: open the link above")
