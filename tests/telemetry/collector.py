"""Stands for an OpenTelemetry collector: takes OTLP over HTTP from the real exporter and decodes it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What was sent so far.

    Attributes:
        url: for OTEL_EXPORTER_OTLP_ENDPOINT.
        spans: in order.
        metrics: names of all metrics.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.metrics: set[str] = set()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            self.spans += [span for held in traces.resource_spans for scope in held.scope_spans for span in scope.spans]
        else:
            told = ExportMetricsServiceRequest.FromString(body)
            self.metrics |= {
                metric.name
                for held in told.resource_metrics
                for scope in held.scope_metrics
                for metric in scope.metrics
            }


def attributes(of: "Span") -> dict[str, object]:
    return {pair.key: _value(pair) for pair in of.attributes}


def _value(pair: KeyValue) -> object:
    return getattr(pair.value, str(pair.value.WhichOneof("value")))


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
