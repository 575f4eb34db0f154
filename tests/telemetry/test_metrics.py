"""`worker --metrics-port`: what a scraper reads of a real worker, and that nobody else pays for it."""

import signal
import socket
import subprocess
import sys
import time

import pytest

from jobq.backend import QueueStats
from jobq.errors import BackendUnavailable
from jobq.events import Events
from jobq.task import Task
from jobq.telemetry.endpoint import STATS_SECONDS, QueueWatch
from jobq.telemetry.histogram_buckets import DURATION_BOUNDS
from jobq.telemetry.metrics import QueueMetrics, WorkerMetrics, exposition
from jobq.telemetry.queue_snapshot import QueueSnapshot, look
from jobq.telemetry.worker_state import WorkerState
from jobq.testing.clock import VirtualClock
from tests.cli.conftest import Jobq

from .scraping import Figures, figures, free_port, read, until, value


def test_counts_attempts_slots_and_the_queue(jobq: Jobq) -> None:
    gate = jobq.folder / "gate"
    wait = f"until [ -e '{gate}' ]; do sleep 0.05; done"
    jobq.fill(
        Task.new(command=wait, priority=1), Task.new(command="exit 3", budgets={"retries": 0}), Task.new(command="true")
    )
    port = free_port()
    worker = jobq.start("demo", "worker", "-n", "2", "--idle-timeout", "30s", "--metrics-port", str(port))

    def one_is_left(found: Figures) -> bool:
        return value(found, "jobq_tasks_finished_total", outcome="succeeded") == 1 and (
            value(found, "jobq_tasks_settled_total", settled="dead_lettered") == 1
        )

    found = until(port, worker, one_is_left)
    assert value(found, "jobq_tasks_dead_lettered_total", reason="failed") == 1
    assert value(found, "jobq_worker_slots", state="busy") == 1
    assert value(found, "jobq_worker_slots", state="free") == 1
    assert value(found, "jobq_tasks_started_total") == 3
    assert value(found, "jobq_tasks_finished_total", outcome="failed") == 1
    assert value(found, "jobq_task_duration_seconds_count") == 2
    assert value(found, "jobq_worker_info", version="0.1.0", queue="demo", backend="embedded") == 1
    assert '"busy": 1' in read(port, "/healthz")
    gate.touch()
    until(port, worker, lambda found: value(found, "jobq_worker_slots", state="busy") == 0)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0


def test_tells_where_tasks_are_apart_so_that_an_autoscaler_need_not_guess() -> None:
    told = exposition(
        QueueMetrics("q", "sqlite", QueueSnapshot(QueueStats(visible=3, leased=2, scheduled=1, dead=4), 12.5))
    )
    found = figures(told.decode())
    states = {
        state: value(found, "jobq_queue_tasks", state=state) for state in ("visible", "leased", "scheduled", "dead")
    }
    assert states == {"visible": 3, "leased": 2, "scheduled": 1, "dead": 4}
    assert value(found, "jobq_queue_unfinished_tasks") == 6
    assert value(found, "jobq_queue_oldest_task_age_seconds") == 12.5


def test_stats_prometheus_prints_the_same_for_who_has_no_worker(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"), Task.new(command="true"))
    found = figures(jobq("demo", "stats", "--prometheus").out)
    assert value(found, "jobq_queue_tasks", state="visible", queue="demo", backend="embedded") == 2
    assert value(found, "jobq_queue_tasks", state="scheduled") == 0
    age = value(found, "jobq_queue_oldest_task_age_seconds")
    assert age is not None
    assert 0 < age < 60
    jobq("demo", "worker", "-n", "2", env={"JOBQ_GUARDIAN": "off"})
    found = figures(jobq("demo", "stats", "--prometheus").out)
    assert value(found, "jobq_queue_recent_attempts", outcome="succeeded") == 2, "of a worker that nobody has scraped"
    assert value(found, "jobq_queue_recent_attempts", outcome="failed") == 0
    jobq("demo", "stats", "--prometheus", "--json", code=2)


def test_what_a_service_cannot_tell_is_absent_not_zero() -> None:
    stats = QueueStats(visible=None, leased=None, scheduled=None, dead=0, total=7)
    found = figures(exposition(QueueMetrics("q", "storage-queue", QueueSnapshot(stats))).decode())
    assert value(found, "jobq_queue_tasks", state="visible") is None
    assert value(found, "jobq_queue_tasks", state="dead") == 0
    assert value(found, "jobq_queue_unfinished_tasks") == 7
    silent = figures(exposition(QueueMetrics("q", "sqlite", None)).decode())
    assert [name for name, _ in silent] == ["jobq_queue_answers"]
    assert value(silent, "jobq_queue_answers") == 0
    # A Service Bus that lets the worker receive, but not manage: an autoscaler would read 0 as nothing to do.
    nothing = QueueStats(visible=None, leased=None, scheduled=None, dead=None)
    assert [name for name, _ in figures(exposition(QueueMetrics("q", "sb", QueueSnapshot(nothing))).decode())] == [
        "jobq_queue_answers"
    ]


class _WithoutItsJournal:
    """Stands for a Storage Queue with a journal in a table that is away."""

    async def stats(self, _window: float | None = None) -> QueueStats:
        if _window is not None:
            raise BackendUnavailable("503")
        return QueueStats(visible=None, leased=None, scheduled=None, dead=0, total=7)

    @property
    def journal(self) -> "_WithoutItsJournal":
        return self


async def test_a_journal_that_is_away_costs_the_age_alone() -> None:
    found = await look(_WithoutItsJournal())  # type: ignore[arg-type]
    assert (found.stats.unfinished, found.oldest_seconds) == (7, None)


def test_buckets_add_up_and_a_duration_on_a_bound_is_below_it() -> None:
    state = WorkerState()
    metrics = WorkerMetrics("q", "sqlite", state)
    events = Events(state.on_event, metrics.on_event)
    for seconds in (DURATION_BOUNDS[1], DURATION_BOUNDS[1] + 0.1, 1e9):
        events.emit("task.failed", task_id="t", duration_s=seconds)
    found = figures(exposition(metrics).decode())
    bucket = {
        le: value(found, "jobq_task_duration_seconds_bucket", le=le) for le in ("0.1", "1.0", "10.0", "86400.0", "+Inf")
    }
    assert bucket == {"0.1": 0, "1.0": 1, "10.0": 2, "86400.0": 2, "+Inf": 3}


def test_a_success_that_was_not_acknowledged_frees_its_slot_and_counts_as_unknown() -> None:
    state = WorkerState()
    metrics = WorkerMetrics("q", "sqlite", state)
    events = Events(state.on_event, metrics.on_event)
    events.emit("worker.started", slots=2)
    events.emit("task.started", task_id="t")
    assert (state.busy, state.free) == (1, 1)
    events.emit("task.settlement_unknown", task_id="t")  # S5: nothing tells of a success then
    assert (state.busy, state.free) == (0, 2)
    found = figures(exposition(metrics).decode())
    assert value(found, "jobq_tasks_settled_total", settled="unknown") == 1
    assert value(found, "jobq_tasks_finished_total", outcome="succeeded") is None


class _Counting:
    """Stands for a backend of which only the counts are asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.refuses = False

    async def stats(self) -> QueueStats:
        self.asked += 1
        if self.refuses:
            raise BackendUnavailable("503")
        return QueueStats(visible=self.asked, leased=0, scheduled=0, dead=0)


async def test_the_service_is_asked_once_in_thirty_seconds_however_often_one_scrapes() -> None:
    backend, clock = _Counting(), VirtualClock()
    metrics = QueueMetrics("q", "sqlite")
    watch = QueueWatch(backend, metrics, clock)  # type: ignore[arg-type]
    for _ in range(5):
        await watch.refresh()
    assert backend.asked == 1
    await clock.advance(STATS_SECONDS)
    await watch.refresh()
    assert backend.asked == 2
    backend.refuses = True
    await clock.advance(STATS_SECONDS)
    await watch.refresh()
    assert metrics.seen is None  # old figures would be told as new ones


def test_a_port_in_use_is_told_plainly(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = jobq("demo", "worker", "--metrics-port", str(port), code=3)
    assert f"cannot serve metrics on 127.0.0.1:{port}" in result.err
    assert len(jobq.waiting()) == 1


def test_off_imports_nothing() -> None:
    code = (
        "import asyncio, sys\n"
        "from types import SimpleNamespace\n"
        "from jobq.telemetry.setup import attached\n"
        "from jobq.events import Events\n"
        "from jobq.settings import Settings\n"
        "async def main():\n"
        "    async with attached(Events(), Settings(), SimpleNamespace(name='q'), 'sqlite'): pass\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus_client', 'aiohttp'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("grace", ["29s", "10s"])
def test_warns_where_the_platform_kills_too_early(jobq: Jobq, grace: str) -> None:
    jobq.fill()
    result = jobq("demo", "worker", env={"JOBQ_TERMINATION_GRACE": grace})
    assert "the platform kills" in result.err
    assert "lower JOBQ_STOP_GRACE" in result.err


def test_says_nothing_of_a_grace_that_suffices(jobq: Jobq) -> None:
    jobq.fill()
    assert "the platform kills" not in jobq("demo", "worker", env={"JOBQ_TERMINATION_GRACE": "30s"}).err


def test_waits_and_renewals_of_a_real_worker_are_counted(jobq: Jobq) -> None:
    """A wait is of the first attempt; renewals are counted while the task runs, not when it ends."""
    now = time.time()
    jobq.fill(
        Task.new(command="until [ -e gate ]; do sleep 0.05; done", created=now - 500),
        Task.new(command="exit 3", budgets={"retries": 1}, created=now - 5000, not_before=now - 5),
    )
    port = free_port()
    worker = jobq.start(
        *("demo", "worker", "-n", "2", "--visibility-timeout", "4s", "--backoff", "10ms", "--idle-timeout", "60s"),
        env={"JOBQ_ALLOW_SHORT_LEASE": "1", "JOBQ_METRICS_PORT": str(port)},
    )

    def was_renewed(found: Figures) -> bool:
        renewed = value(found, "jobq_lease_renewals_total", result="extended") or 0
        return renewed >= 1 and value(found, "jobq_tasks_started_total") == 3

    found = until(port, worker, was_renewed)
    assert value(found, "jobq_task_queue_wait_seconds_count") == 2
    assert value(found, "jobq_task_queue_wait_seconds_bucket", le="60.0") == 1
    assert value(found, "jobq_task_queue_wait_seconds_bucket", le="900.0") == 2
    assert value(found, "jobq_worker_slots", state="busy") == 1
    (jobq.folder / "gate").touch()
    worker.terminate()
    worker.wait(20)
