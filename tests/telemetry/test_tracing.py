"""Spans and metrics of a real worker, by the real exporter, in a collector; and one that cannot be reached."""

import signal
import socket
import time

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from jobq.task import Task
from tests.cli.conftest import Jobq, eventually

from .collector import Collector, attributes, collecting

pytestmark = pytest.mark.check

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


def _environment(collector: Collector) -> dict[str, str]:
    return {"JOBQ_TELEMETRY": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}


def test_each_attempt_is_a_consumer_span_linked_to_its_push(jobq: Jobq) -> None:
    good, bad = jobq.fill(
        Task.new(command='echo "$TRACEPARENT"', trace_context=CONTEXT, priority=1),
        Task.new(command="exit 3", budgets={"retries": 1}),
    )
    with collecting() as collector:
        result = jobq("demo", "worker", "--backoff", "10ms", "--json", env=_environment(collector))
    by_task: dict[object, list[Span]] = {}
    for span in collector.spans:
        assert span.kind == Span.SPAN_KIND_CONSUMER
        assert span.name == "process demo"
        by_task.setdefault(attributes(span)["messaging.message.id"], []).append(span)
    (done,) = by_task[good]
    assert done.links[0].trace_id.hex() == TRACE
    assert done.links[0].span_id.hex() == PARENT
    assert done.trace_id.hex() != TRACE
    told = attributes(done)
    assert told["messaging.system"] == "jobq_sqlite"
    assert told["messaging.destination.name"] == "demo"
    assert told["jobq.outcome"] == "succeeded"
    # What the task traces hangs below its attempt.
    printed = next(line["line"] for line in result.objects if line["event"] == "task.output")
    assert printed.startswith(f"00-{done.trace_id.hex()}-{done.span_id.hex()}-0")
    first, second = by_task[bad]
    assert [attributes(span)["jobq.attempt"] for span in (first, second)] == [1, 2]
    assert all(span.status.code == Status.STATUS_CODE_ERROR for span in (first, second))
    assert attributes(second)["process.exit.code"] == 3
    assert {"messaging.process.duration", "messaging.client.consumed.messages"} <= collector.metrics


def test_an_attempt_may_be_the_child_of_its_push_instead(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true", trace_context=CONTEXT))
    with collecting() as collector:
        jobq("demo", "worker", env=_environment(collector) | {"JOBQ_TRACE_PARENT": "parent"})
    (span,) = collector.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.trace_state == "vendor=1"
    assert not span.links


def test_without_telemetry_the_task_gets_the_context_of_its_push(jobq: Jobq) -> None:
    jobq.fill(Task.new(command='echo "$TRACEPARENT $TRACESTATE"', trace_context=CONTEXT))
    result = jobq("demo", "worker", "--json")
    printed = next(line["line"] for line in result.objects if line["event"] == "task.output")
    assert printed == f"00-{TRACE}-{PARENT}-01 vendor=1"


@pytest.mark.parametrize("context", [{"traceparent": "garbage"}, {"traceparent": f"00-{'0' * 32}-{PARENT}-01"}])
def test_a_hostile_trace_context_is_ignored(jobq: Jobq, context: dict[str, str]) -> None:
    jobq.fill(Task.new(command="true", trace_context=context))
    with collecting() as collector:
        jobq("demo", "worker", env=_environment(collector))
    (span,) = collector.spans
    assert not span.links


def test_a_collector_that_never_answers_holds_nothing_up(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="touch begun; sleep 60"))
    with socket.socket() as black_hole:
        black_hole.bind(("127.0.0.1", 0))
        black_hole.listen(64)
        url = f"http://127.0.0.1:{black_hole.getsockname()[1]}"
        worker = jobq.start("demo", "worker", env={"JOBQ_TELEMETRY": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url})
        eventually((jobq.folder / "begun").exists)
        stopped = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 143
        assert time.monotonic() - stopped < 8
    (task,) = jobq.waiting()
    assert task.counters.preemptions == 1  # given back at once


def test_a_missing_extra_is_named(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    hides = "import sys; sys.modules['opentelemetry'] = None"
    (jobq.folder / "sitecustomize.py").write_text(hides)
    result = jobq(
        "demo", "worker", "--guardian", "off", env={"JOBQ_TELEMETRY": "otlp", "PYTHONPATH": str(jobq.folder)}, code=3
    )
    assert "pip install 'jobq[otel]'" in result.err
    assert len(jobq.waiting()) == 1


def test_azure_monitor_needs_its_connection_string(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="true"))
    result = jobq("demo", "worker", env={"JOBQ_TELEMETRY": "azure-monitor"}, code=3)
    assert "needs APPLICATIONINSIGHTS_CONNECTION_STRING" in result.err


def test_a_push_hands_on_the_context_that_it_was_started_with(jobq: Jobq) -> None:
    environment = {"TRACEPARENT": CONTEXT["traceparent"], "TRACESTATE": CONTEXT["tracestate"]}
    jobq("demo", "push", "-c", "true", env=environment)
    jobq("demo", "push", "-c", "true", env={"TRACEPARENT": "garbage"})
    contexts = [task.trace_context for task in jobq.waiting()]
    assert contexts == [CONTEXT, {}]


def test_with_telemetry_a_push_is_a_span_that_its_tasks_are_linked_to(jobq: Jobq) -> None:
    with collecting() as collector:
        jobq("demo", "push", "-c", "true", env=_environment(collector) | {"TRACEPARENT": CONTEXT["traceparent"]})
        jobq("demo", "worker", env=_environment(collector))
    push, attempt = collector.spans
    assert (push.name, push.kind) == ("send demo", Span.SPAN_KIND_PRODUCER)
    assert (push.trace_id.hex(), push.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(push)["messaging.operation.type"] == "send"
    assert attempt.links[0].span_id == push.span_id
