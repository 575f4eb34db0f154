"""What pages share: what is told once, and the backends of queues that were just made."""

import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.datastructures import QueryParams

from jobq.dashboard import site
from jobq.dashboard.session import Viewer
from jobq.server.backend_pool import BackendPool
from jobq.server.error_responses import RequestRefused
from jobq.server.tokens import new_token
from jobq.settings import Settings
from jobq.spec import resolve


def test_what_came_of_a_change_is_told_for_a_moment_and_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    record, _ = new_token("id", "name", ("view",), ("*",))
    viewer = Viewer(token=record, session="s", key=b"k" * 32)
    address = site.told(viewer, "/ui/q/a?state=dead", "3 put back").headers["location"]
    query = QueryParams(urlsplit(address).query)
    assert query["state"] == "dead"
    assert site._told(viewer, query) == "3 put back"
    assert site._told(Viewer(token=record, session="t", key=b"l" * 32), query) == ""
    assert site._told(viewer, QueryParams({**query, "at": str(int(query["at"]) + 10)})) == ""
    assert site._told(viewer, QueryParams({**query, "at": "soon"})) == ""
    assert site._told(None, query) == ""
    later = time.time() + 20
    monkeypatch.setattr(time, "time", lambda: later)
    assert site._told(viewer, query) == "", "a page that is loaded again repeats nothing"


async def test_a_queue_that_was_seen_is_there_whatever_was_known(tmp_path: Path) -> None:
    """Missing ones are looked for once a second; who has just seen a queue need not wait for that."""
    spec, settings = f"sqlite://{tmp_path}/jobs.db/a", Settings(home=tmp_path)
    places = BackendPool(spec, settings)
    await places.open()
    try:
        with pytest.raises(RequestRefused):
            await places.take("b")
        async with resolve(f"sqlite://{tmp_path}/jobs.db/b", settings) as backend:
            await backend.create()
        taken = await places.take("b", is_seen=True)
        assert (await taken.stats()).visible == 0
        places.give("b")
    finally:
        await places.close()
