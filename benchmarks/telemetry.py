"""What telemetry costs: tasks per second of `jobq worker` with it and without; sides take turns in one run.

With metrics the worker's page is scraped once a second; with OTLP traces and metrics go to a collector in a process of
its own, which takes its share of the machine too. Time counts from worker.started to worker.stopped, as the worker
tells them. Aim: under 1 % of the rate.
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path

from tests.telemetry.collector import collecting
from tests.telemetry.scraping import free_port

SLOTS = 8
TASKS = 1500


def measure(folder: Path, rounds: int) -> list[dict[str, object]]:
    """Return the rates and what each kind of telemetry takes of them."""
    with _collector() as url:
        modes = {
            "off": dict[str, str](),
            "metrics": {"JOBQ_METRICS_PORT": str(free_port()), "JOBQ_HEALTH_FILE": str(folder / "health")},
            "otlp": {"JOBQ_TELEMETRY": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url},
        }
        rates: dict[str, list[float]] = {mode: [] for mode in modes}
        for number in range(rounds):
            for mode in modes if number % 2 else reversed(modes):
                rates[mode].append(_rate(folder / f"{mode}{number}.db", modes[mode]))
    off = statistics.median(rates["off"])
    return [
        {
            "what": f"worker, true, {SLOTS} slots, {mode}".ljust(42),
            "jobq": (ours := statistics.median(rates[mode])),
            "unit": "/s   without",
            "bare": off,
            "rel": "/s   cost",
            "cost": 1 - ours / off,
        }
        for mode in ("metrics", "otlp")
    ]


def _rate(path: Path, more: dict[str, str]) -> float:
    environment = os.environ | {"JOBQ_QUEUE": f"sqlite://{path}/bench", "JOBQ_SCHEDULED_EVENTS": "off"}
    jobq = [sys.executable, "-m", "jobq"]
    lines = "true\n" * TASKS
    subprocess.run([*jobq, "push"], input=lines, text=True, check=True, capture_output=True, env=environment)
    with _scraped(more.get("JOBQ_METRICS_PORT")):
        command = [*jobq, "worker", "-n", str(SLOTS), "--log-format", "json"]
        done = subprocess.run(command, text=True, check=True, capture_output=True, env=environment | more)
    told = {event["event"]: event for event in map(json.loads, done.stderr.splitlines())}
    assert told["worker.stopped"]["succeeded"] == TASKS
    began, ended = (datetime.fromisoformat(told[name]["ts"]) for name in ("worker.started", "worker.stopped"))
    return TASKS / (ended - began).total_seconds()


@contextmanager
def _scraped(port: str | None) -> Iterator[None]:
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(1.0):
            with suppress(urllib.error.URLError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).close()

    thread = threading.Thread(target=scrape)
    if port:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if port:
            thread.join()


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
