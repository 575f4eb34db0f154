"""The JSON log: a real worker to which all happens, each line held to what docs/observing.md promises."""

import json
import re
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from jobq.events import Events
from jobq.run.attempt.attempt_events import AttemptEvents
from jobq.run.attempt.retry import Cancel
from jobq.run.attempt.settle import Settled
from jobq.task import Task
from jobq.telemetry.metrics import WorkerMetrics, exposition
from jobq.telemetry.worker_state import WorkerState
from tests.cli.conftest import Jobq, eventually
from tests.deploy.files import ROOT

from .scraping import figures, value

if TYPE_CHECKING:
    from jobq.backend import Delivery

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
SPAN: Final = "b7ad6b7169203331"
# The events that are promised.
EVENTS: Final = {
    "task.leased",
    "task.started",
    "task.succeeded",
    "task.failed",
    "task.retry_scheduled",
    "task.dead_lettered",
    "task.timeout",
    "task.cancelled",
    "task.lease_lost",
    "worker.started",
    "worker.draining",
    "worker.stopped",
    "preemption.watched",
    "preemption.notice",
    "task.crashed",
    "task.preempted",
    "task.output",
    "log",
}
COMMON: Final = {"ts", "level", "event", "msg", "queue", "backend", "worker_id", "host"}
TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(COMMON | {"task_id", "error_type", "trace_id", "span_id", "detail", "reason", "fencing"}, str),
    **dict.fromkeys({"attempt", "max_attempts", "exit_code", "signal", "slots", "processes", "max_rss_bytes"}, int),
    **dict.fromkeys({"duration_s", "delay_s", "cpu_s", "in_s", "lease_s"}, (int, float)),
}
GIVEN_UP: Final = 4
ENDS: Final = {"succeeded", "failed", "timeout", "cancelled", "lease_lost", "crashed", "preempted"}


@contextmanager
def _metadata() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Stand for Azure's metadata service: yields its address, and the events that it tells."""
    events: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"me" if "/compute/name" in self.path else json.dumps({"Events": events}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", events
        server.shutdown()
        thread.join()


def _in_the_database(file: Path, statement: str, id_: str) -> None:
    with closing(sqlite3.connect(file, timeout=20)) as connection, connection:
        assert connection.execute(statement, (id_,)).rowcount == 1


def test_each_transition_is_one_line_of_the_promised_fields(jobq: Jobq) -> None:
    context = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    good, bad, slow, crashing, malformed, stolen, unwanted, waiting, long = jobq.fill(
        Task.new(command="echo hello", trace_context=context),
        Task.new(command="exit 3", budgets={"retries": 1}),
        Task.new(command="sleep 60", timeout=2, budgets={"retries": 0}),
        Task.new(command="kill -9 $$", budgets={"crashes": 0}),
        Task.new(command="true"),
        Task.new(command="touch stolen; sleep 60"),
        Task.new(command="touch unwanted; sleep 60"),
        Task.new(command="true"),
        Task.new(command="touch long; sleep 60 # secret-word"),
    )
    _in_the_database(jobq.file, "UPDATE task SET body = x'00' WHERE id = ?", malformed)
    jobq("demo", "cancel", waiting)  # before it is leased: no worker hears of it
    log = jobq.folder / "log"
    with _metadata() as (url, notices), log.open("wb") as file:
        worker = jobq.start(
            *("demo", "worker", "-n", "8", "--visibility-timeout", "8s", "--backoff", "10ms", "--idle-timeout", "60s"),
            env={"JOBQ_ALLOW_SHORT_LEASE": "1", "JOBQ_SCHEDULED_EVENTS": "on", "JOBQ_IMDS_URL": url},
            stderr=file.fileno(),
        )
        for name in ("stolen", "unwanted", "long"):
            eventually((jobq.folder / name).exists)
        _in_the_database(jobq.file, "UPDATE task SET receipt = 'another' WHERE id = ?", stolen)
        jobq("demo", "cancel", unwanted)
        eventually(lambda: {"task.lease_lost", "task.cancelled"} <= {line["event"] for line in _lines(log)})
        eventually(lambda: log.read_text().count('"task.dead_lettered"') == GIVEN_UP)
        notices.append({"EventId": "e", "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": ["me"]})
        eventually(lambda: "task.preempted" in log.read_text())
        worker.send_signal(signal.SIGTERM)
        out, _ = worker.communicate(timeout=20)
    lines = _lines(log)
    assert {line["event"] for line in lines} - {"log"} == EVENTS - {"task.output", "log"}
    printed = [json.loads(line) for line in out.decode().splitlines()]
    assert [(line["event"], line["stream"], line["line"]) for line in printed] == [("task.output", "stdout", "hello")]
    for line in lines + printed:
        _hold_to_the_schema(line)
    assert "secret-word" not in log.read_text(), "what runs is told to nobody (A5)"

    def story(id_: str) -> list[str]:
        return [line["event"].removeprefix("task.") for line in lines if line.get("task_id") == id_]

    assert story(good) == ["leased", "started", "succeeded"]
    again = ["leased", "started", "failed"]
    assert story(bad) == [*again, "retry_scheduled", *again, "dead_lettered"]
    assert story(slow) == ["leased", "started", "timeout", "dead_lettered"]
    assert story(crashing) == ["leased", "started", "crashed", "dead_lettered"]
    assert story(malformed) == ["leased", "dead_lettered"]
    assert story(stolen) == ["leased", "started", "lease_lost"]
    assert story(unwanted) == ["leased", "started", "cancelled"]
    assert story(long) == ["leased", "started", "preempted", "retry_scheduled"]
    assert story(waiting) == []
    told = {(line["task_id"], line["event"]): line for line in lines if "task_id" in line}
    assert (told[good, "task.succeeded"]["trace_id"], told[good, "task.succeeded"]["span_id"]) == (TRACE, SPAN)
    assert (told[bad, "task.failed"]["attempt"], told[bad, "task.failed"]["max_attempts"]) == (2, 2)
    assert [told[id_, f"task.{end}"]["error_type"] for id_, end in (
        (bad, "failed"), (slow, "timeout"), (crashing, "crashed"), (stolen, "lease_lost"), (malformed, "dead_lettered")
    )] == ["exit_code", "timeout", "signal", "lease_lost", "malformed"]  # fmt: skip


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _hold_to_the_schema(line: dict[str, Any]) -> None:
    assert set(line) >= COMMON, line
    family, _, verb = line["event"].partition(".")
    assert line["event"] in EVENTS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"]), "RFC 3339, UTC"
    assert line["level"] in {"debug", "info", "warning", "error"}
    assert (line["queue"], line["backend"], line["host"]) == ("demo", "embedded", socket.gethostname())
    assert re.fullmatch(re.escape(line["host"]) + r":\d+", line["worker_id"])
    for name, held in line.items():
        assert isinstance(held, TYPES.get(name, (str, int, float))), (name, held)
        assert f"`{name}`" in REFERENCE, f"docs/observing.md does not tell what {name} is"
    assert f"`{line['event']}`" in REFERENCE
    if family == "task":
        assert set(line) >= {"task_id", "attempt"}
    if family == "task" and verb != "output":
        assert "max_attempts" in line or line.get("error_type") == "malformed" or verb == "leased"
    if verb in ENDS:
        assert "duration_s" in line
        assert ("error_type" in line) == (verb not in {"succeeded", "cancelled", "preempted"})


REFERENCE: Final = (ROOT / "docs/observing.md").read_text().partition("## Logs")[2].partition("\n## ")[0]


def test_one_that_was_canceled_with_its_delivery_under_way_is_told_of() -> None:
    """Leased, then canceled: a line for each, though nothing ever ran; and no attempt is counted."""
    told: list[str] = []
    events = Events(lambda event: told.append(event.name))
    metrics = WorkerMetrics("q", "sqlite", WorkerState())
    events.subscribe(metrics.on_event)
    delivery = SimpleNamespace(id="t", deliveries=1)
    attempt_events = AttemptEvents(events, cast("Delivery", delivery), "q")
    attempt_events.leased(Task.new(command="true"))
    attempt_events.settled(Cancel(), Settled.YES)
    assert told == ["task.leased", "task.cancelled"]
    assert value(figures(exposition(metrics).decode()), "jobq_tasks_finished_total") is None
