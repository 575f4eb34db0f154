"""What /metrics shows: requests by endpoint and status, how long they took, and how many wait."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The figures of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "jobq_http_requests_total", "Requests answered.", ("endpoint", "status"), registry=self._registry
        )
        self.seconds = Histogram(
            "jobq_http_request_seconds",
            "From the head of a request to its answer; claims may wait.",
            ("endpoint",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.waiting = Gauge("jobq_http_requests_waiting", "Requests under way.", registry=self._registry)
        self.tasks = Gauge("jobq_tasks", "Tasks of the default queue.", ("state",), registry=self._registry)

    def text(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)
