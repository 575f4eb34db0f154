"""What a shell offers where a queue, a file or an id is wanted; of the queues of this machine alone, within a second.

Nothing here says why it offers nothing: what a shell would show of that is noise in the middle of a command line.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from jobq.cli.common import LOCAL_SCHEMES, Invocation

if TYPE_CHECKING:
    from jobq.backend import Backend

_SECONDS: Final = 1.0
_MOST: Final = 50


def files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the name of a file."""
    return [CompletionItem(incomplete, type="file")]


def queues(incomplete: str) -> list[CompletionItem]:
    """Offer the embedded queues that begin so."""

    async def names(backend: "Backend") -> list[str]:
        from jobq.servable import Servable  # noqa: PLC0415 - as in `_offered`

        return await backend.queues() if isinstance(backend, Servable) else []

    return _offered("completion", names, incomplete)


def ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the ids of the queue's tasks that begin so."""

    async def known(backend: "Backend") -> list[str]:
        from jobq.journal.store import journal_of  # noqa: PLC0415 - as in `_offered`

        return await journal_of(backend).ids_with(incomplete, _MOST)

    invocation = context.find_object(Invocation)
    return _offered(invocation.spec if invocation else None, known, incomplete)


def _offered(
    spec: str | None, look: Callable[["Backend"], Awaitable[list[str]]], incomplete: str
) -> list[CompletionItem]:
    import asyncio  # noqa: PLC0415 - no other command pays for these

    from jobq.errors import JobqError  # noqa: PLC0415
    from jobq.settings import Settings  # noqa: PLC0415
    from jobq.spec import parse, resolve  # noqa: PLC0415

    async def looked(text: str, settings: Settings) -> list[str]:
        async with asyncio.timeout(_SECONDS), resolve(text, settings) as backend:
            return await look(backend)

    try:
        settings = Settings.from_environment()
        text = spec or settings.queue
        found = asyncio.run(looked(text, settings)) if text and parse(text).scheme in LOCAL_SCHEMES else []
    except (JobqError, OSError, TimeoutError):
        found = []
    return [CompletionItem(each) for each in found if each.startswith(incomplete)]
