"""The trace context of a push comes back with its attempt on every backend; and nothing that traces stops a task."""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, use_span

import jobq
from jobq import sync
from jobq.events import Events
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.spec import parse
from jobq.task import Task
from jobq.telemetry import tracing
from tests.azure.emulator import ACCOUNT, Azurite
from tests.cli.conftest import Jobq
from tests.emulators.service_bus.emulator import Emulator
from tests.service.server import HttpServer

from .collector import Collector, attributes, collecting

if TYPE_CHECKING:
    from jobq.backend import Delivery
    from tests.postgres.server import Database

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
ORIGIN = SpanContext(int(TRACE, 16), int(PARENT, 16), is_remote=False)
SYSTEMS = {
    "memory": "jobq_memory",
    "sqlite": "jobq_sqlite",
    "postgres": "jobq_postgresql",
    "http": "jobq_http",
    "storage_queue": "azure_storage_queue",
    "service_bus": "servicebus",
}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Spans of this process, without the providers that a process can set only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", lambda: provider.get_tracer("jobq"))
    return exporter


@contextlib.asynccontextmanager
async def _place(kind: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Settings]]:
    settings = Settings(home=folder, scheduled_events="off", poll_max="200ms")
    if kind == "memory":
        yield "memory://traces/q", settings
    elif kind == "sqlite":
        yield f"sqlite://{folder}/jobs.db/q", settings
    elif kind == "postgres":
        database: Database = request.getfixturevalue("postgres")
        yield database.fresh().spec(), settings
    elif kind == "http":
        server = HttpServer(f"sqlite://{folder}/jobs.db/q", folder)
        server.start()
        try:
            yield f"{server.url}/q", settings
        finally:
            server.stop()
    elif kind == "storage_queue":
        azurite: Azurite = request.getfixturevalue("azurite")
        connection = azurite.connection_string
        yield f"{ACCOUNT}/traces", settings.copied({"connection_string": connection})
    else:
        async with Emulator() as emulator:
            connection = emulator.connection_string
            yield "sb://emulator/traces", settings.copied({"connection_string": connection})


@pytest.mark.parametrize("kind", SYSTEMS)
async def test_an_attempt_is_linked_to_the_span_around_its_push(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, spans: InMemorySpanExporter
) -> None:
    printed: list[str] = []
    async with _place(kind, tmp_path, request) as (spec, settings), jobq.connect(spec, settings=settings) as queue:
        with use_span(NonRecordingSpan(ORIGIN)):
            await queue.push(["echo $TRACEPARENT", "exit 3"])
        events = Events()
        traced = tracing.Tracing(queue.backend.name, parse(spec).scheme)
        events.subscribe(traced.on_event)
        events.annotate(traced.ids)
        told: list[tuple[str, object]] = []
        events.subscribe(lambda event: told.append((event.name, event.fields.get("span_id"))))
        worker = Worker(
            queue.backend,
            settings.copied({"max_consecutive_failures": 0}),
            events=events,
            adapt=traced.runner,
            on_line=lambda _task, _stream, line: printed.append(line),
            max_tasks=2,
        )
        await worker.run()
    found = spans.get_finished_spans()
    assert len(found) == 2
    for span in found:
        assert (span.name, span.kind) == (f"process {queue.backend.name}", SpanKind.CONSUMER)
        assert span.attributes is not None
        assert span.attributes["messaging.system"] == SYSTEMS[kind]
        assert [link.context.span_id for link in span.links] == [ORIGIN.span_id]
        assert span.parent is None
    good = next(span for span in found if span.attributes and span.attributes["jobq.outcome"] == "succeeded")
    bad = next(span for span in found if span is not good)
    assert bad.attributes is not None
    assert (bad.attributes["error.type"], bad.attributes["process.exit.code"]) == ("exit_code", 3)
    assert printed == [_traceparent(good)]
    ids = {_traceparent(span).split("-")[2] for span in found}
    assert {span for name, span in told if name == "task.started"} == ids
    assert dict(told)["task.retry_scheduled"] in ids, "what becomes of the task is told with the span that has ended"


def _traceparent(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"


async def test_a_push_of_the_library_takes_the_nearest_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own span, else TRACEPARENT of the process; what a task brings itself stays."""
    settings = Settings(home=tmp_path)

    async def many() -> AsyncIterator[str]:
        yield "true"

    async with jobq.connect("memory://nearest/q", settings=settings) as queue:
        await queue.push("true")
        monkeypatch.setenv("TRACEPARENT", TRACEPARENT.replace(PARENT, "1" * 16))
        await queue.push("true")
        with use_span(NonRecordingSpan(ORIGIN)):
            await queue.push("true")
            await queue.push(many())
            await queue.push(Task.new(command="true", trace_context={"traceparent": "mine"}))
            with sync.connect("memory://nearest/q", settings=settings) as plain:
                plain.push("true")
        contexts = [Task.decode(found.body).trace_context for found in await queue.peek(10)]
    parents = [context.get("traceparent") for context in contexts]
    span = TRACEPARENT.removesuffix("01") + "00"
    assert parents == [None, TRACEPARENT.replace(PARENT, "1" * 16), span, span, "mine", span]


def test_a_push_of_a_program_without_opentelemetry_imports_none() -> None:
    code = (
        "import asyncio, jobq, sys\n"
        "async def main():\n"
        "    async with jobq.connect('memory://x/q') as queue: await queue.push('true')\n"
        "asyncio.run(main())\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


class _Broken:
    """Stands for an SDK that fails in ways that it should not."""

    def start_span(self, *_: object, **__: object) -> object:
        raise RuntimeError("no span today")


def test_a_task_runs_as_it_was_pushed_where_tracing_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of what traces leaves no task to its lease (L4); it is told once, not with each task."""
    monkeypatch.setattr(tracing, "tracer", _Broken)
    traced = tracing.Tracing("q", "sqlite")
    task = Task.new(command="true", trace_context={"traceparent": TRACEPARENT})
    delivery = cast("Delivery", SimpleNamespace(deliveries=1, fencing="0.0.1"))
    with caplog.at_level(logging.ERROR):
        assert traced.begun(task, delivery) is task
        assert traced.begun(task, delivery) is task
    assert caplog.text.count("attempts cannot be traced") == 1


@pytest.mark.parametrize(
    "state", ["x" * 60_000, "a!," * 20_000, "=\x1b[2J", ",".join(f"k{number}=v" for number in range(33)), "a=1,,b=2"]
)
def test_a_hostile_trace_state_is_dropped_and_not_written_into_the_log(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever can push can write it, once for each attempt (A5)."""
    with caplog.at_level(logging.DEBUG):
        origin = tracing.origin_of({"traceparent": TRACEPARENT, "tracestate": state})
    assert origin is not None
    assert (origin.span_id, dict(origin.trace_state)) == (ORIGIN.span_id, {})
    assert caplog.text == ""


def test_a_good_trace_state_is_kept() -> None:
    origin = tracing.origin_of({"TRACEPARENT": TRACEPARENT, "TRACESTATE": "vendor=one two, 7t@other=x/y"})
    assert origin is not None
    assert dict(origin.trace_state) == {"vendor": "one two", "7t@other": "x/y"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def test_a_worker_runs_all_where_each_span_fails(jobq: Jobq) -> None:
    """The same in the real worker: an SDK that raises at each begin."""
    jobq.fill(Task.new(command="echo one"), Task.new(command="echo two"))
    (jobq.folder / "sitecustomize.py").write_text(
        "import opentelemetry.sdk.trace as sdk\n"
        "def fail(*_, **__): raise RuntimeError('no span today')\n"
        "sdk.Tracer.start_span = sdk.Span.end = fail\n"
    )
    with collecting() as collector:
        environment = {"JOBQ_TELEMETRY": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        environment |= {"PYTHONPATH": str(jobq.folder)}
        result = jobq("demo", "worker", "--guardian", "off", env=environment)
    assert sorted(line["line"] for line in result.objects) == ["one", "two"]
    assert "no span today" in result.err
    assert jobq.waiting() == []


def test_fanout_and_run_link_their_tasks_too(jobq: Jobq, collector: Collector) -> None:
    environment = {
        "JOBQ_TELEMETRY": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "TRACEPARENT": TRACEPARENT,
    }
    (jobq.folder / "lines").write_text("a\nb\n")
    jobq("demo", "fanout", "n", "--lines", "lines", "--", "echo", "{line}", env=environment)
    (push,) = collector.spans
    assert (push.name, push.parent_span_id.hex()) == ("send demo", PARENT)
    assert {task.trace_context["traceparent"].split("-")[2] for task in jobq.waiting()} == {push.span_id.hex()}
    collector.spans.clear()
    out = jobq("run", stdin="echo $TRACEPARENT\n", env=environment).out
    attempt = next(span for span in collector.spans if span.name.startswith("process"))
    (sent,) = (span for span in collector.spans if span is not attempt)
    assert sent.parent_span_id.hex() == PARENT
    assert attempt.links[0].span_id == sent.span_id
    assert attributes(attempt)["jobq.outcome"] == "succeeded"
    assert attempt.span_id.hex() in out
    assert "TRACEPARENT" not in out
    assert TRACE in jobq("run", stdin="echo $TRACEPARENT\n", env={"TRACEPARENT": TRACEPARENT}).out
