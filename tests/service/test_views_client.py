"""What the client makes of a service that shows what nobody can read, is older, says no, or is away."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from jobq.errors import AnswerLost, BackendUnavailable, ConfigurationError, JobqError, QueueNotFound
from jobq.journal.notes import DEPTH_MARK, NoteKind, time_key
from jobq.journal.task_filter import TaskFilter
from jobq.journal.views import Views
from jobq_http import HttpBackend, HttpConnection
from tests.service.server import running

_ALL = TaskFilter()
_OLDER = '{"error": {"code": "no_such_path", "message": "there is nothing here"}}'


@asynccontextmanager
async def _answering(body: str, status: int = 200, *, is_ours: bool = True) -> AsyncIterator[HttpBackend]:
    """A service that answers each request so."""

    async def answer(_request: web.Request) -> web.Response:
        headers = {"Jobq-Service": "1"} if is_ours else {}
        return web.Response(text=body, status=status, headers=headers, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with HttpBackend(HttpConnection(url), "demo") as backend:
            yield backend
    finally:
        await runner.cleanup()


_LOOKS: dict[str, Callable[[Views], Awaitable[object]]] = {
    "queues": lambda views: views.queues("", 10),
    "queue": lambda views: views.queue("demo"),
    "tasks": lambda views: views.tasks("demo", _ALL, "", 10),
    "count": lambda views: views.count("demo", _ALL),
    "task": lambda views: views.task("demo", "a"),
    "output": lambda views: views.output("demo", "a"),
    "leases": lambda views: views.leases("demo", "", "", 10),
    "dead_groups": lambda views: views.dead_groups("demo", ["exit"], 10),
    "notes": lambda views: views.notes("demo", NoteKind.DEPTH, "", 10),
}
_GARBAGE = ("{}", "[]", "3", "null", '"x"', '{"rows": [1], "notes": [1], "groups": [1], "task": 1, "attempt": "x"}')


@pytest.mark.parametrize("look", _LOOKS)
@pytest.mark.parametrize("body", _GARBAGE)
async def test_what_cannot_be_read_is_no_answer(look: str, body: str) -> None:
    async with _answering(body) as backend, backend.views() as views:
        with pytest.raises(BackendUnavailable, match="cannot be read"):
            await _LOOKS[look](views)


@pytest.mark.parametrize("look", _LOOKS)
async def test_a_service_that_is_older_is_named_and_a_proxys_word_is_none(look: str) -> None:
    async with _answering(_OLDER, 404) as backend, backend.views() as views:
        with pytest.raises(ConfigurationError, match="the service is older than this jobq"):
            await _LOOKS[look](views)
    async with _answering("{}", is_ours=False) as backend, backend.views() as views:
        with pytest.raises(AnswerLost):
            await _LOOKS[look](views)


async def test_notes_of_an_older_service_are_an_error_that_who_notes_knows(tmp_path: Path) -> None:
    async with _answering(_OLDER, 404) as backend:
        with pytest.raises(JobqError):
            await backend.observations().put(NoteKind.DEPTH, time_key(0), DEPTH_MARK, replaces=True)
    with running(f"sqlite://{tmp_path}/q.db/demo", tmp_path, env={"JOBQ_JOURNAL": "off"}) as server:
        async with HttpBackend(HttpConnection(server.url), "demo") as backend:
            notes = backend.observations()
            assert not (await notes.put(NoteKind.DEPTH, time_key(0), DEPTH_MARK, replaces=True)).is_kept
            assert await notes.page(NoteKind.DEPTH, "", 10) == []
            await notes.drop(NoteKind.DEPTH, [time_key(0)])
            assert (await notes.ended(0.0, 1.0)).total == 0
            assert (await notes.line()).name == "demo"


async def test_a_name_that_no_queue_has_is_asked_of_nobody() -> None:
    """It could lead to another request."""
    async with _answering("{}") as backend, backend.views() as views:
        for name in ("", "a/b", "..", "a?b", "a b", "\0", "\ud800", "x" * 64, "demo/views"):
            with pytest.raises(QueueNotFound):
                await views.queue(name)
            with pytest.raises(QueueNotFound):
                await backend.observations(name or "/").line()


async def test_views_are_left_without_the_backend_and_the_other_way_round(tmp_path: Path) -> None:
    with running(f"sqlite://{tmp_path}/q.db/demo", tmp_path) as server:
        async with HttpBackend(HttpConnection(server.url), "demo") as backend:
            async with backend.views() as views:
                assert (await views.queue("demo", budget=timedelta(seconds=60))).name == "demo"
            assert (await backend.stats()).visible == 0
            with pytest.raises(BackendUnavailable):
                await views.queue("demo")
        many = HttpBackend(HttpConnection(server.url), "demo").views()
        async with many as views:
            found = await asyncio.gather(*(views.count("demo", _ALL) for _ in range(50)))
            assert {each.number for each in found} == {0}
