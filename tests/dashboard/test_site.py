"""What pages share: what is told once, and the backends of queues that were just made."""

import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.datastructures import QueryParams

from jobq.dashboard import site
from jobq.dashboard.pages.hosts import HostRow, WorkerRow
from jobq.dashboard.session import Viewer
from jobq.journal.presence import WorkerPresence
from jobq.journal.records import TaskRecord, TaskState
from jobq.journal.task_rows import detail_of
from jobq.servable import DATABASE
from jobq.server.backend_pool import ServedPool
from jobq.server.error_responses import RequestRefused
from jobq.server.tokens import new_token
from jobq.settings import Settings
from jobq.spec import resolve

pytestmark = pytest.mark.check


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
    places = ServedPool(spec, settings)
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


def test_who_vanishes_loses_what_it_held() -> None:
    """It tells of nothing any more: who ended, or is there, has told all."""
    told = WorkerPresence(
        holder="node-3:7", host="node-3", version="0.1.0", slots=4, busy=3, state="working", started=0.0, lost=1
    )
    states = ("gone", "stopped", "working")
    rows = [WorkerRow(queue="demo", told=told, age=100.0, state=state) for state in states]
    assert [row.lost for row in rows] == [4, 1, 1]
    assert HostRow(name="node-3", workers=rows).lost == 6


@pytest.mark.parametrize("hastens", [True, False])
def test_a_button_is_there_only_for_what_the_backend_can(hastens: bool) -> None:
    task = detail_of(TaskRecord(id="a", state=TaskState.SCHEDULED, attempt=1, at=2e9), [])
    page = site.WebPage(template="task.html", title="a", queue="demo")
    values = {"task": task, "row": task.row, "printed": None, "is_running": False, "changes": []}
    capabilities = replace(DATABASE, hastens=hastens)
    template = site._templates.get_template(page.template)
    text = template.render(page=page, may=lambda _: True, capabilities=capabilities, now_seconds=1.0, **values)
    assert ("Run now..." in text) is hastens
    assert "Cancel..." in text
