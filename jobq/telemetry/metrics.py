"""What a worker counts, from its events, and what it asks of its queue: the figures behind /metrics.

Counts with plain numbers, since events are frequent and scrapes are not; prometheus-client (extra `otel`) makes them
into text. No figure has a label by task, whose number has no bound.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from jobq import __version__
from jobq.events import Event
from jobq.task import OutcomeKind
from jobq.telemetry.histogram_buckets import DURATION_BOUNDS
from jobq.telemetry.queue_snapshot import QueueSnapshot
from jobq.telemetry.worker_state import ENDS, WorkerState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABELS: Final = ("queue", "backend")
_SETTLED: Final = {
    "task.completed": "completed",
    "task.retry_scheduled": "requeued",
    "task.dead_lettered": "dead_lettered",
    "task.settlement_unknown": "unknown",
    "task.not_settled": "lost",
    "task.released": "released",
}
_STATES: Final = ("visible", "leased", "scheduled", "dead")


class Histogram:
    """Counts durations by the bounds of this package.

    Args:
        name: of the metric.
        text: what it means.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._buckets = [0] * (len(DURATION_BOUNDS) + 1)
        self._seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._seconds += seconds
        self._buckets[bisect_left(DURATION_BOUNDS, seconds)] += 1  # what lies on a bound is below it

    def family(self, labels: Sequence[str]) -> Metric:
        """Return it as a metric."""
        family = HistogramMetricFamily(self._name, self._text, labels=_LABELS)
        total, buckets = 0, []
        for bound, count in zip([*map(str, DURATION_BOUNDS), "+Inf"], self._buckets, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(labels, buckets, self._seconds)
        return family


class WorkerMetrics(Collector):
    """Counts a worker's events; subscribe `on_event`.

    Args:
        queue: the queue's name, a label of every figure.
        backend: the word for its kind, such as sqlite.
        state: of the same worker.
    """

    def __init__(self, queue: str, backend: str, state: WorkerState) -> None:
        self._labels = [queue, backend]
        self._state = state
        self._started = 0
        self._ended: Counter[str] = Counter()
        self._settled: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._notices: Counter[str] = Counter()
        self._receive_failures = 0
        self._renewals: Counter[str] = Counter()
        self._durations = Histogram("jobq_task_duration_seconds", "How long attempts ran.")
        text = "How long tasks waited for their first attempt, from their push or from when they were due."
        self._waits = Histogram("jobq_task_queue_wait_seconds", text)

    def on_event(self, event: Event) -> None:
        """Count one event."""
        if event.name == "task.started":
            self._started += 1
            if "waited_s" in event.fields:
                self._waits.observe(float(event.fields["waited_s"]))
        elif event.name == "task.lease_renewed":
            self._renewals[str(event.fields["result"])] += 1
        elif event.name in ENDS:
            if "duration_s" in event.fields:  # else it was canceled before it began
                self._ended[ENDS[event.name]] += 1
                self._durations.observe(float(event.fields["duration_s"]))
        elif event.name in _SETTLED:
            self._settled[_SETTLED[event.name]] += 1
            if event.name == "task.dead_lettered":
                self._reasons[str(event.fields["reason"])] += 1
        elif event.name == "preemption.notice":
            self._notices[str(event.fields["type"])] += 1
        elif event.name == "worker.receive_failed":
            self._receive_failures += 1

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the worker."""
        info = GaugeMetricFamily(
            "jobq_worker_info", "The version of this worker.", labels=(*_LABELS, "version", "state")
        )
        info.add_metric([*self._labels, __version__, self._state.word], 1)
        yield info
        slots = GaugeMetricFamily("jobq_worker_slots", "Room for running tasks.", labels=(*_LABELS, "state"))
        slots.add_metric([*self._labels, "busy"], self._state.busy)
        slots.add_metric([*self._labels, "free"], self._state.free)
        yield slots
        yield self._counter("jobq_tasks_started", "Attempts whose process was started.", self._started)
        yield self._by("jobq_tasks_finished", "Attempts, by how they ended.", "outcome", self._ended)
        yield self._by("jobq_tasks_settled", "Deliveries, by what became of them.", "settled", self._settled)
        yield self._by("jobq_tasks_dead_lettered", "Dead letters, by why.", "reason", self._reasons)
        yield self._by("jobq_preemption_notices", "Notices of this machine's end.", "type", self._notices)
        failures = "Receives that the queue's service refused or did not answer."
        yield self._counter("jobq_receive_failures", failures, self._receive_failures)
        yield self._by("jobq_lease_renewals", "Renewals of tasks' leases.", "result", self._renewals)
        yield self._durations.family(self._labels)
        yield self._waits.family(self._labels)

    def _counter(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _by(self, name: str, text: str, label: str, counts: Counter[str]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(*_LABELS, label))
        for value, count in sorted(counts.items()):
            family.add_metric([*self._labels, value], count)
        return family


class QueueMetrics(Collector):
    """What a queue holds; what its service cannot count is absent, never 0.

    Args:
        queue: its name.
        backend: the word for its kind.

    Attributes:
        seen: the backend's last answer; None = it gave none lately, and nothing is shown.
    """

    def __init__(self, queue: str, backend: str, seen: QueueSnapshot | None = None) -> None:
        self._labels = [queue, backend]
        self.seen = seen

    def collect(self) -> Iterator[Metric]:
        """Yield the counts."""
        answers = GaugeMetricFamily("jobq_queue_answers", "Whether the queue gave its counts: 1 or 0.", labels=_LABELS)
        answers.add_metric(self._labels, self.seen is not None)
        yield answers
        if self.seen is None:
            return
        stats, oldest, ended = self.seen
        held = GaugeMetricFamily("jobq_queue_tasks", "Tasks, by where they are.", labels=(*_LABELS, "state"))
        for state in _STATES:
            count = getattr(stats, state)
            if count is not None:
                held.add_metric([*self._labels, state], count)
        yield held
        text = "Tasks that are visible, leased or scheduled: all that a Storage Queue counts, and about."
        if stats.is_known:
            unfinished = GaugeMetricFamily("jobq_queue_unfinished_tasks", text, labels=_LABELS)
            unfinished.add_metric(self._labels, stats.unfinished)
            yield unfinished
            paused = GaugeMetricFamily("jobq_queue_paused", "Whether nothing is handed out: 1 or 0.", labels=_LABELS)
            paused.add_metric(self._labels, stats.paused is not None)
            yield paused
        if oldest is not None:
            text = "How long the oldest task that could start has waited."
            age = GaugeMetricFamily("jobq_queue_oldest_task_age_seconds", text, labels=_LABELS)
            age.add_metric(self._labels, oldest)
            yield age
        if ended is not None:
            text = "Attempts that ended in the last 15 minutes, by how, of whatever workers: by the queue's journal."
            recent = GaugeMetricFamily("jobq_queue_recent_attempts", text, labels=(*_LABELS, "outcome"))
            for outcome in sorted({*map(str, OutcomeKind), *ended}):
                recent.add_metric([*self._labels, outcome], ended.get(outcome, 0))
            yield recent


def exposition(*collectors: Collector) -> bytes:
    """Return the figures of these collectors in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)
