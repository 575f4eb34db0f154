"""What telemetry costs a worker: CPU that it adds to an attempt, as a share of all CPU that the shortest task takes.

Three figures for each kind. `added`: CPU microseconds that telemetry takes for one attempt, measured alone with real
tasks, events, spans and exporter, since it drowns in the noise of whole workers. `task`: CPU of guardian, worker and
task for one `true`, as the kernel counts it, from the slope between a short and a long run, so that starts do not
count. The cost is their ratio. Then rates of whole workers with it and without, which take turns; they differ by more
than what they are to show. The page is scraped as Prometheus does by default; the collector is a process of its own,
and its CPU is not ours. Aim: under 1 %.
"""

import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from benchmarks.commands import whole
from benchmarks.measure import Figure, Meter, Row, compared, in_turns, median
from benchmarks.sections import Options
from jobq.events import Events
from jobq.settings import Settings
from jobq.task import Task
from tests.telemetry.collector import collecting
from tests.telemetry.scraping import free_port

if TYPE_CHECKING:
    from jobq.backend import Delivery

SLOTS = 8
SHORT, LONG = 200, 1200  # tasks
ATTEMPTS = 4000
A_TENTH = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}
SCRAPE_SECONDS = 15.0  # Prometheus' default is a minute, that of its operator 30 s
CONTEXT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield what each kind of telemetry adds, and what it is a share of; then rates with it and without."""
    with _collector() as url:
        modes = {
            "off": dict[str, str](),
            "metrics": {"JOBQ_METRICS_PORT": str(free_port()), "JOBQ_HEALTH_FILE": str(folder / "health")},
            "otlp": {"JOBQ_TELEMETRY": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url},
        }
        times = range(max(3, options.rounds))
        added = {mode: min(_apart(mode, url) for _ in times) for mode in modes}
        sampled = min(_apart("otlp", url, **A_TENTH) for _ in times)
        starts: dict[str, list[float]] = {mode: [] for mode in modes}
        few, many = options.scaled(SHORT), options.scaled(LONG)

        def slope(mode: str, number: int) -> Figure:
            path = folder / f"{mode}{number}"
            short, long = (_worker(path, tasks, modes[mode]) for tasks in (few, many))
            starts[mode].append(short.cpu_seconds)
            long.seconds -= short.seconds
            long.cpu_seconds -= short.cpu_seconds
            return long.figure(many - few)

        found = in_turns(options.rounds, {mode: partial(slope, mode) for mode in modes})
    task = median(found["off"]).cpu_ms
    less = (sampled - added["off"]) / (added["otlp"] - added["off"])
    for mode in ("metrics", "otlp"):
        more = 1e3 * (added[mode] - added["off"])
        yield {
            "what": f"telemetry, true, {SLOTS} slots, {mode}",
            "added": {"us CPU": 1e3 * more},
            "task": {"us CPU": 1e3 * task},
            "cost": more / task,
            "start": {"s CPU": statistics.median(starts[mode]) - statistics.median(starts["off"])},
        }
        yield compared(f"telemetry, rate, {mode}", {"with": found[mode], "without": found["off"]})
    yield {"what": "telemetry, otlp, a tenth of the traces", "added": {"x of all": less}}


def _apart(mode: str, url: str, **more: str) -> float:
    """Return CPU seconds of one attempt's events in a process of its own, with all that hears them."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_attempts, args=(mode, {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **more}, theirs))
    process.start()
    found = float(ours.recv())
    process.join()
    return found


def _attempts(mode: str, environment: dict[str, str], connection: Connection) -> None:
    os.environ |= environment
    tasks = [Task.new(command="true", trace_context=CONTEXT) for _ in range(ATTEMPTS)]
    events = Events()
    with _heard(mode, events) as begin:
        began = time.process_time()
        for number, task in enumerate(tasks):
            events.emit("task.leased", task_id=task.id, attempt=1)
            begin(task)
            events.emit("task.started", task_id=task.id, attempt=1, waited_s=0.1)
            events.emit("task.succeeded", task_id=task.id, attempt=1, exit_code=0, duration_s=0.01)
            if number % 100 == 0:
                time.sleep(0.02)  # tasks take their time, and the exporter works meanwhile
    # What is left is sent before the context ends: all of it counts, exporter threads too.
    connection.send((time.process_time() - began) / ATTEMPTS)


@contextmanager
def _heard(mode: str, events: Events) -> Iterator[Callable[[Task], object]]:
    if mode == "metrics":
        from jobq.telemetry.metrics import WorkerMetrics  # noqa: PLC0415 - as in the worker
        from jobq.telemetry.worker_state import WorkerState  # noqa: PLC0415 - as above

        state = WorkerState()
        events.subscribe(state.on_event)
        events.subscribe(WorkerMetrics("q", "sqlite", state).on_event)
    if mode != "otlp":
        yield lambda task: task
        return
    from jobq.telemetry.setup import traced  # noqa: PLC0415 - as above

    class Inner:
        async def start(self, *_: Any, **__: Any) -> Any: ...

    delivery = cast("Delivery", SimpleNamespace(deliveries=1, fencing="0.0.1"))
    with traced(events, Settings(telemetry="otlp"), "q", "sqlite") as adapt:
        runner = cast("Any", adapt(cast("Any", Inner())))
        yield lambda task: _step(runner.start(task, delivery, deadline=None, keeper=None))


def _step(start: Any) -> None:
    with suppress(StopIteration):
        start.send(None)


def _worker(path: Path, tasks: int, more: dict[str, str]) -> Meter:
    environment = os.environ | {"JOBQ_QUEUE": f"sqlite://{path}-{tasks}.db/bench", "JOBQ_SCHEDULED_EVENTS": "off"}
    jobq = [sys.executable, "-m", "jobq"]
    lines = "true\n" * tasks
    subprocess.run([*jobq, "push"], input=lines, text=True, check=True, capture_output=True, env=environment)
    with _scraped(more.get("JOBQ_METRICS_PORT")):
        return whole([*jobq, "worker", "-n", str(SLOTS), "--log-format", "json"], environment | more)


@contextmanager
def _scraping(port: str) -> Iterator[None]:
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(SCRAPE_SECONDS):
            with suppress(urllib.error.URLError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).close()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _scraped(port: str | None) -> Any:
    return _scraping(port) if port else nullcontext()


@contextmanager
def _collector() -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_collect, args=(theirs,))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join()


def _collect(connection: Connection) -> None:
    with collecting() as collector:
        connection.send(collector.url)
        while not connection.poll():
            time.sleep(0.1)
            collector.spans.clear()
