"""P8 with a real metadata service of our own: the notice, whom it concerns, what is given back, what is called off."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from jobq.events import Events
from jobq.run.stopping import Stopping
from jobq.run.worker.preemption import PreemptionWatch, concerning
from jobq.run.worker.worker_report import WorkerReport  # noqa: TC001 - read by people and mypy alike
from tests.process.stage import Stage, stage_in

pytestmark = pytest.mark.check

NAME = "this-machine"
DATE = "Mon, 19 Sep 2016 18:29:17 GMT"
IN_30_S = "Mon, 19 Sep 2016 18:29:47 GMT"


def event(kind: str = "Preempt", *, resources: tuple[str, ...] = (NAME,), not_before: str = IN_30_S) -> dict[str, Any]:
    return {
        "EventId": "an-event",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(resources),
        "EventStatus": "Scheduled" if not_before else "Started",
        "NotBefore": not_before,
    }


class Metadata:
    """The two pages of the Azure metadata service that matter, and a record of what was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.events: list[dict[str, Any]] = []
        self.status = 200
        self.refusals: list[int] = []
        self.asked = 0
        self.posted = 0
        self._changed = asyncio.Condition()

    async def name(self, request: web.Request) -> web.Response:
        assert request.headers["Metadata"] == "true"
        return web.Response(text=NAME, status=self.refusals.pop() if self.refusals else 200)

    async def listed(self, request: web.Request) -> web.Response:
        assert request.headers["Metadata"] == "true"
        self.posted += request.method != "GET"
        async with self._changed:
            self.asked += 1
            self._changed.notify_all()
        document = {"DocumentIncarnation": 1, "Events": self.events}
        return web.json_response(document, status=self.status, headers={"Date": DATE})

    async def asked_again(self, times: int = 1) -> None:
        async with self._changed:
            target = self.asked + times
            await self._changed.wait_for(lambda: self.asked >= target)


@asynccontextmanager
async def metadata_service() -> AsyncIterator[Metadata]:
    service = Metadata()
    app = web.Application()
    app.router.add_get("/metadata/instance/compute/name", service.name)
    app.router.add_route("*", "/metadata/scheduledevents", service.listed)
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()


@pytest.fixture
async def service() -> AsyncIterator[Metadata]:
    async with metadata_service() as service:
        yield service


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage_in(tmp_path) as stage:
        yield stage


def worker(stage: Stage, service: Metadata, stopping: Stopping, **settings: Any) -> "asyncio.Task[WorkerReport]":
    settings = {"scheduled_events": "on", "imds_url": service.url, "idle_timeout": timedelta(hours=1), **settings}
    return asyncio.create_task(stage.worker(stopping, **settings).run())


async def test_a_notice_gives_the_work_back_and_takes_nothing_new(stage: Stage, service: Metadata) -> None:
    """P8: stop receiving, SIGTERM, grace, requeue visible at once; a preemption is no failure."""
    stopping = Stopping()
    await stage.push("trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done")
    running = worker(stage, service, stopping)
    await stage.until_printed("ready")
    service.events = [event()]
    await stage.until(lambda: stage.told("task.retry_scheduled"))
    assert any(line == "told" for _, _, line in stage.lines)
    assert stage.told("preemption.notice")[0].fields["in_s"] == 30
    await service.asked_again(2)
    assert (await stage.backend.stats()).visible == 1, "others may start it, this machine does not"
    (peeked,) = await stage.backend.peek(1)
    assert b'"preemptions":1' in peeked.body
    stopping.stop("a test")
    assert (await running).given_back == 1
    assert service.posted == 0, "an event is never acknowledged"


async def test_a_preemption_that_is_called_off_lets_the_worker_go_on(stage: Stage, service: Metadata) -> None:
    stopping = Stopping()
    service.events = [event()]
    running = worker(stage, service, stopping)
    await stage.until(lambda: stage.told("preemption.notice"))
    await stage.push("true")
    await service.asked_again(2)
    assert not stage.told("task.started")
    service.events = []
    await stage.until(lambda: stage.told("task.succeeded"))
    assert stage.told("preemption.called_off")
    stopping.stop("a test")
    report = await running
    assert (report.succeeded, report.exit_code) == (1, 0)


async def test_trouble_of_the_service_is_no_news(stage: Stage, service: Metadata) -> None:
    """An answer that says nothing neither pauses nor resumes."""
    stopping = Stopping()
    service.events = [event()]
    running = worker(stage, service, stopping)
    await stage.until(lambda: stage.told("preemption.notice"))
    service.status = 503
    await service.asked_again(2)
    assert stopping.paused
    stopping.stop("a test")
    await running


async def test_a_stubborn_task_is_killed_within_the_notice(stage: Stage, service: Metadata) -> None:
    """P8: an event that has begun leaves no grace."""
    stopping = Stopping()
    await stage.push("trap '' TERM; echo ready; while :; do sleep 0.02; done")
    running = worker(stage, service, stopping, stop_grace=timedelta(minutes=10))
    await stage.until_printed("ready")
    service.events = [event(not_before="")]
    await stage.until(lambda: stage.told("task.preempted"), seconds=10)
    stopping.stop("a test")
    await running


@pytest.mark.parametrize("status", [429, 500, 404])
async def test_p8_a_bad_answer_at_the_start_is_not_for_life(stage: Stage, service: Metadata, status: int) -> None:
    """One 429 to the first request, and a worker heard of no preemption as long as it lived."""
    stopping = Stopping()
    service.refusals = [status]
    service.events = [event()]
    running = worker(stage, service, stopping, scheduled_events="auto")
    await stage.until(lambda: stage.told("preemption.notice"))
    assert [told.level for told in stage.told("preemption.watched")] == [logging.INFO]
    stopping.stop("a test")
    await running


async def test_where_nothing_ever_answers_the_watch_ends_and_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.run.worker.preemption._LONGEST_PAUSE_SECONDS", 0.1)
    await PreemptionWatch(Stopping(), Events(stage._hear), url="http://127.0.0.1:1", poll_seconds=0.001).run()
    assert [(told.name, told.level) for told in stage.events] == [("preemption.unwatched", logging.INFO)]


async def test_no_service_delays_nothing(stage: Stage) -> None:
    await stage.push("true")
    report = await stage.work(scheduled_events="auto", imds_url="http://127.0.0.1:1")
    assert report.succeeded == 1


def test_the_nearest_of_several_notices_counts() -> None:
    """P8: a reboot in 15 minutes must not hide a preemption in 30 seconds."""
    later = event("Reboot", not_before="Mon, 19 Sep 2056 18:44:47 GMT")
    notice = concerning({"Events": [later, event("Preempt"), later]}, NAME, DATE)
    assert notice is not None
    assert (notice.kind, notice.seconds) == ("Preempt", 30.0)


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Redeploy", "Reboot"])
def test_what_concerns_us(kind: str) -> None:
    notice = concerning({"Events": [event("Freeze"), event(kind, resources=("other", NAME))]}, NAME, DATE)
    assert notice is not None
    assert (notice.kind, notice.seconds, notice.grace) == (kind, 30.0, 20.0)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"Events": None},
        {"Events": ["x", {}, {"EventType": "Preempt"}, {"EventType": "Preempt", "Resources": NAME}]},
        {"Events": [event("Freeze")]},
        {"Events": [event(resources=("another-machine",))]},
    ],
)
def test_what_does_not(document: object) -> None:
    """Events of the whole placement group come along; and nonsense is no notice."""
    assert concerning(document, NAME, DATE) is None


@pytest.mark.parametrize(
    ("not_before", "date", "seconds", "grace"),
    [
        ("", DATE, 0.0, 0.0),
        (IN_30_S, None, 0.0, 0.0),
        ("soon", DATE, 0.0, 0.0),
        ("Mon, 19 Sep 2016 18:29:27 GMT", DATE, 10.0, 5.0),
        ("Mon, 19 Sep 2016 18:00:00 GMT", DATE, 0.0, 0.0),
        ("Mon, 19 Sep 2016 18:44:17 GMT", DATE, 900.0, 20.0),
    ],
)
def test_the_grace_is_bounded_by_the_notice(not_before: str, date: str | None, seconds: float, grace: float) -> None:
    """P8: grace <= min(notice - 5 s, 20 s), by two times of one answer."""
    notice = concerning({"Events": [event(not_before=not_before)]}, NAME, date)
    assert notice is not None
    assert (notice.seconds, notice.grace) == (seconds, grace)
