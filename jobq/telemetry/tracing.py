"""OpenTelemetry: one CONSUMER span an attempt, linked to its push; metrics by the messaging conventions (extra `otel`).

Semantic conventions for messaging, version 1.44, status Development. The process of a task gets
its attempt's context as TRACEPARENT, so that what it traces hangs below its attempt.

It has to be cheap, for it runs on the event loop beside every short task: the W3C text is read and written here rather
than by propagators, and the count of attempts is a number that the exporter asks for.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from jobq import __version__
from jobq.backend import Delivery
from jobq.events import Event
from jobq.formats.trace_context import ids_of, state_of, written
from jobq.lease.keeper import LeaseKeeper
from jobq.run.attempt.runner import Runner, Running
from jobq.run.process.spawner import Deadline
from jobq.task import Task
from jobq.telemetry.histogram_buckets import DURATION_BOUNDS
from jobq.telemetry.worker_state import ENDS, UNSETTLED

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
_NOWHERE: Final = Context()
_MOST_IDS: Final = 1024  # of attempts that have ended, for events of theirs that come afterwards


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


def origin_of(context: Mapping[str, str]) -> SpanContext | None:
    """Return the remote span that a W3C context names; None where it names none."""
    ids = ids_of(context)
    if ids is None:
        return None
    state = state_of(context)  # read from what is not valid, OpenTelemetry writes it into the log, member by member
    return SpanContext(
        int(ids.trace_id, 16),
        int(ids.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(ids.flags, 16)),
        trace_state=TraceState.from_header([state]) if state else None,
    )


def context_of(context: Mapping[str, str]) -> Context:
    """Return a W3C context as one in which spans begin: below the span that it names, if any."""
    origin = origin_of(context)
    return _NOWHERE if origin is None else trace.set_span_in_context(NonRecordingSpan(origin), _NOWHERE)


def carried(context: SpanContext) -> dict[str, str]:
    """Return a span's context as W3C text; nothing for one that is not valid."""
    if not context.is_valid:
        return {}
    return written(context.trace_id, context.span_id, context.trace_flags, context.trace_state.to_header())


class Tracing:
    """Traces the attempts of a worker; subscribe `on_event`, annotate by `ids`, run tasks by `runner`.

    Args:
        queue: the queue's name.
        kind: the word for its kind of service.
        parent: link = an attempt begins a trace and is linked to its push; parent = it is part of the push's trace.
    """

    def __init__(self, queue: str, kind: str, parent: Literal["link", "parent"] = "link") -> None:
        self._name = f"process {queue}"
        self._parent = parent
        self._tracer = tracer()
        self._attributes = messaging_attributes(queue, kind, operation="process")
        self._failed: dict[str, dict[str, str]] = {}  # by error.type
        self._begun = 0
        self._has_failed = False
        meter = metrics.get_meter(_SCOPE, __version__)
        meter.create_observable_counter(
            "messaging.client.consumed.messages", [self._consumed], "{message}", "Attempts started."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long attempts ran.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS,
        )
        self._spans: dict[str, Span] = {}
        self._ids: dict[str, dict[str, str]] = {}

    def runner(self, inner: Runner) -> Runner:
        """Return a runner that gives each attempt its span."""
        return _TracedRunner(inner, self)

    def ids(self, name: str, fields: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the span of the attempt that an event is about; an annotator of `Events`."""
        if name == "task.leased":
            self._ids.pop(str(fields["task_id"]), None)  # of an earlier attempt
        return self._ids.get(str(fields.get("task_id")), {})

    def begun(self, task: Task, delivery: Delivery) -> Task:
        """Begin the span of an attempt; return the task with the span as its trace context.

        A fault of what traces is logged once: the task is what matters, and runs as it was pushed.
        """
        try:
            return self._begin(task, delivery)
        except Exception:  # noqa: BLE001 - whatever it is, the task must start (L4)
            if not self._has_failed:
                _log.exception("attempts cannot be traced")
            self._has_failed = True
            return task

    def _begin(self, task: Task, delivery: Delivery) -> Task:
        origin = origin_of(task.trace_context)
        is_child = self._parent == "parent"
        span = self._tracer.start_span(
            self._name,
            context=context_of(task.trace_context) if is_child else _NOWHERE,
            kind=SpanKind.CONSUMER,
            links=[Link(origin)] if origin is not None and not is_child else [],
            attributes={
                **self._attributes,
                "messaging.message.id": task.id,
                "jobq.task_id": task.id,  # once more: Azure Monitor keeps no attribute of the conventions
                "jobq.attempt": delivery.deliveries,
                "jobq.fencing": f"{task.epoch}.{task.generation}.{delivery.deliveries}",  # S3; asking would decode anew
            },
        )
        self._end(task.id, "superseded", {})  # a lease that was lost can come back to this very worker
        self._spans[task.id] = span
        self._begun += 1
        context = carried(span.get_span_context())
        if not context:
            return task
        _, trace_id, span_id, _ = context["traceparent"].split("-")
        self._ids[task.id] = {"trace_id": trace_id, "span_id": span_id}
        if len(self._ids) > _MOST_IDS:
            self._forget()
        kept = {name: value for name, value in task.trace_context.items() if name.lower() == "baggage"}
        return task.copied({"trace_context": {**kept, **context}})

    def _forget(self) -> None:
        self._ids = {id_: ids for id_, ids in self._ids.items() if id_ in self._spans}

    def _consumed(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._begun, self._attributes)]

    def on_event(self, event: Event) -> None:
        """End the span that an event is the end of."""
        outcome = ENDS.get(event.name) or ("unsettled" if event.name in UNSETTLED else None)
        if outcome is not None:
            self._end(str(event.fields["task_id"]), outcome, event.fields)

    def _end(self, task_id: str, outcome: str, fields: Mapping[str, Any]) -> None:
        span = self._spans.pop(task_id, None)
        if span is None:
            return
        failed, error = outcome in _FAILURES, str(fields.get("error_type", outcome))
        if "duration_s" in fields:
            attributes = self._with_error(error) if failed else self._attributes
            self._duration.record(float(fields["duration_s"]), attributes, _NOWHERE)
        if span.is_recording():
            ended: dict[str, Any] = {"jobq.outcome": outcome}
            for name, attribute in (("exit_code", "process.exit.code"), ("signal", "jobq.signal")):
                if name in fields:
                    ended[attribute] = fields[name]
            if failed:
                ended["error.type"] = error
                span.set_status(Status(StatusCode.ERROR, str(fields.get("detail", ""))))
            span.set_attributes(ended)
        span.end()

    def _with_error(self, error: str) -> dict[str, str]:
        return self._failed.setdefault(error, {**self._attributes, "error.type": error})

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
