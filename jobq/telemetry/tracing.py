"""OpenTelemetry: one CONSUMER span an attempt, linked to its push; metrics by the messaging conventions (extra `otel`).

Semantic conventions for messaging, version 1.44, status Development (facts: operations 3.1). The process of a task gets
its attempt's context as TRACEPARENT, so that what it traces hangs below its attempt.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from jobq import __version__
from jobq.backend import Delivery
from jobq.events import Event
from jobq.lease.keeper import LeaseKeeper
from jobq.run.process import Deadline
from jobq.run.running import Runner, Running
from jobq.task import Task
from jobq.telemetry.bounds import DURATION_BOUNDS
from jobq.telemetry.state import ENDS, UNSETTLED

_log = logging.getLogger(__name__)
_SCOPE: Final = "jobq"
_SYSTEMS: Final = {
    "storage-queue": "azure_storage_queue",
    "sb": "servicebus",  # the only one that the conventions define
    "postgres": "jobq_postgresql",
    "postgresql": "jobq_postgresql",
    "embedded": "jobq_sqlite",
}
_FAILURES: Final = frozenset({"failed", "timed_out", "crashed", "lock_lost"})
_WORD: Final = re.compile(r"[^a-z0-9]+")


def tracer() -> trace.Tracer:
    """Return the tracer of all that is jobq's."""
    return trace.get_tracer(_SCOPE, __version__)


def messaging_attributes(queue: str, kind: str, *, operation: str) -> dict[str, str]:
    """Return what the conventions want of each span and metric.

    Args:
        queue: its name.
        kind: the word for its kind of service.
        operation: name and type of the operation: process or send.
    """
    return {
        "messaging.system": _SYSTEMS.get(kind, f"jobq_{_WORD.sub('_', kind)}"),
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


class Tracing:
    """Traces the attempts of a worker; subscribe `on_event`, run tasks by `runner`.

    Args:
        queue: the queue's name.
        kind: the word for its kind of service.
        parent: link = an attempt begins a trace and is linked to its push; parent = it is part of the push's trace.
    """

    def __init__(self, queue: str, kind: str, parent: Literal["link", "parent"] = "link") -> None:
        self._queue = queue
        self._parent = parent
        self._tracer = tracer()
        self._attributes = messaging_attributes(queue, kind, operation="process")
        meter = metrics.get_meter(_SCOPE, __version__)
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Attempts started.")
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long attempts ran.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS,
        )
        self._spans: dict[str, Span] = {}

    def runner(self, inner: Runner) -> Runner:
        """Return a runner that gives each attempt its span."""
        return _TracedRunner(inner, self)

    def begun(self, task: Task, delivery: Delivery) -> Task:
        """Begin the span of an attempt; return the task with the span as its trace context."""
        origin = propagate.extract(_lower(task.trace_context))
        created = trace.get_current_span(origin).get_span_context()
        span = self._tracer.start_span(
            f"process {self._queue}",
            context=origin if self._parent == "parent" else Context(),
            kind=SpanKind.CONSUMER,
            links=[Link(created)] if created.is_valid and self._parent == "link" else [],
            attributes={
                **self._attributes,
                "messaging.message.id": task.id,
                "jobq.attempt": delivery.deliveries,
                "jobq.fencing": str(delivery.fencing),
            },
        )
        self._end(task.id, "superseded", {})  # a lease that was lost can come back to this very worker
        self._spans[task.id] = span
        self._consumed.add(1, self._attributes)
        if not span.get_span_context().is_valid:
            return task
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=trace.set_span_in_context(span, origin))
        return task.model_copy(update={"trace_context": carrier})

    def on_event(self, event: Event) -> None:
        """End the span that an event tells the end of."""
        outcome = ENDS.get(event.name) or ("unsettled" if event.name in UNSETTLED else None)
        if outcome is not None:
            self._end(str(event.fields["task_id"]), outcome, event.fields)

    def _end(self, task_id: str, outcome: str, fields: Mapping[str, Any]) -> None:
        span = self._spans.pop(task_id, None)
        if span is None:
            return
        span.set_attribute("jobq.outcome", outcome)
        for name, attribute in (("exit_code", "process.exit.code"), ("signal", "jobq.signal")):
            if name in fields:
                span.set_attribute(attribute, fields[name])
        failed = outcome in _FAILURES
        if failed:
            span.set_attribute("error.type", outcome)
            span.set_status(Status(StatusCode.ERROR, str(fields.get("detail", ""))))
        span.end()
        if "duration_s" in fields:
            error = {"error.type": outcome} if failed else {}
            self._duration.record(float(fields["duration_s"]), {**self._attributes, **error})

    def close(self) -> None:
        """End what has not ended."""
        for task_id in list(self._spans):
            self._end(task_id, "unknown", {})


class _TracedRunner:
    def __init__(self, inner: Runner, tracing: Tracing) -> None:
        self._inner = inner
        self._tracing = tracing

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> Running:
        task = self._tracing.begun(task, delivery)
        return await self._inner.start(task, delivery, deadline=deadline, keeper=keeper)


def _lower(context: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in context.items()}
