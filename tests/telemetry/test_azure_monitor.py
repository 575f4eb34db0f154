"""Azure Monitor by its connection string: the real exporter against an ingestion endpoint on this machine."""

import gzip
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from jobq.task import Task
from tests.cli.conftest import Jobq, eventually

KEY: Final = "00000000-0000-0000-0000-00000000cafe"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def _ingesting() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Stand for Application Insights: yields a connection string, and the envelopes that come."""
    envelopes: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            taken = json.loads(body)
            envelopes.extend(taken)
            answer = json.dumps({"itemsReceived": len(taken), "itemsAccepted": len(taken), "errors": []}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"InstrumentationKey={KEY};IngestionEndpoint=http://127.0.0.1:{server.server_port}/", envelopes
        server.shutdown()
        thread.join()


def _environment(connection_string: str) -> dict[str, str]:
    return {"JOBQ_TELEMETRY": "azure-monitor", "APPLICATIONINSIGHTS_CONNECTION_STRING": connection_string}


def test_attempts_and_metrics_arrive_and_nobody_else_hears_of_it(jobq: Jobq) -> None:
    context = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    good, bad = jobq.fill(
        Task.new(command="env", trace_context=context, priority=1),
        Task.new(command="exit 3", budgets={"retries": 0}),
    )
    # An exporter may report on itself to its vendor, by threads of its own: each address that is asked for is noted.
    (jobq.folder / "sitecustomize.py").write_text(
        "import socket\n"
        "ask = socket.getaddrinfo\n"
        "def noted(host, *more, **named):\n"
        "    with open('asked', 'a') as file: print(host, file=file)\n"
        "    return ask(host, *more, **named)\n"
        "socket.getaddrinfo = noted\n"
    )
    with _ingesting() as (connection_string, envelopes):
        environment = _environment(connection_string) | {"PYTHONPATH": str(jobq.folder)}
        result = jobq("demo", "worker", "--guardian", "off", env=environment)
    assert set((jobq.folder / "asked").read_text().split()) == {"127.0.0.1"}
    assert not list(jobq.folder.rglob("*AzureMonitor*")), "nothing is kept on disk"
    assert {envelope["iKey"] for envelope in envelopes} == {KEY}
    requests = {
        data["properties"]["jobq.task_id"]: (envelope, data)
        for envelope in envelopes
        if (data := envelope["data"]["baseData"]) and envelope["data"]["baseType"] == "RequestData"
    }
    envelope, done = requests[good]
    assert (done["name"], done["success"]) == ("process demo", True)
    assert envelope["tags"]["ai.cloud.role"] == "jobq"
    links = json.loads(done["properties"]["_MS.links"])
    assert links == [{"operation_Id": TRACE, "id": PARENT}]
    _, failed = requests[bad]
    assert (failed["success"], failed["properties"]["process.exit.code"]) == (False, "3")
    names = {metric["name"] for each in envelopes for metric in each["data"]["baseData"].get("metrics", [])}
    assert {"messaging.process.duration", "messaging.client.consumed.messages"} <= names
    printed = [line["line"] for line in result.objects]
    assert f"TRACEPARENT=00-{envelope['tags']['ai.operation.id']}-{done['id']}-03" in printed
    assert not [line for line in printed if "APPLICATIONINSIGHTS" in line], "neither the key nor our switches (A6)"
    assert KEY not in result.err


def test_an_endpoint_that_never_answers_holds_nothing_up(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="touch begun; sleep 60"))
    with socket.socket() as black_hole:
        black_hole.bind(("127.0.0.1", 0))
        black_hole.listen(64)
        url = f"http://127.0.0.1:{black_hole.getsockname()[1]}/"
        worker = jobq.start("demo", "worker", env=_environment(f"InstrumentationKey={KEY};IngestionEndpoint={url}"))
        eventually((jobq.folder / "begun").exists)
        stopped = time.monotonic()
        worker.terminate()
        assert worker.wait(30) == 143
        assert time.monotonic() - stopped < 8
    (task,) = jobq.waiting()
    assert task.counters.preemptions == 1


def test_a_wrong_connection_string_is_named_and_not_shown(jobq: Jobq) -> None:
    connection_string = f"InstrumentationKey={KEY}x"
    jobq.fill(Task.new(command="true"))
    result = jobq("demo", "worker", env=_environment(connection_string), code=3)
    assert "APPLICATIONINSIGHTS_CONNECTION_STRING is no connection string" in result.err
    assert connection_string not in result.err
    assert len(jobq.waiting()) == 1


def test_it_is_imported_by_nobody_who_did_not_ask() -> None:
    code = (
        "import sys, jobq.telemetry.exporters, jobq.telemetry.setup\n"
        "assert not [name for name in sys.modules if name.startswith(('opentelemetry', 'azure'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
