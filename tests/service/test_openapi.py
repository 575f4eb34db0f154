"""The service answers as its OpenAPI says: schemathesis makes the requests (no 5xx, no status that is not told)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.server.views import VERBS
from tests.service.server import HttpServer, running

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")  # which checks, and what they are not to expect


def ask_all(server: HttpServer, folder: Path, *options: str) -> str:
    schema = server.ask("GET", "/openapi.json")[1]
    # Shorter than any patience: many of these claims find nothing.
    schema["components"]["schemas"]["ClaimRequest"]["properties"]["wait_seconds"]["maximum"] = 0.05
    (folder / "openapi.json").write_text(json.dumps(schema))
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIGURATION)),
            *("run", str(folder / "openapi.json"), "--url", server.url, "--no-color", *options),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-60000:] + done.stderr[-2000:]
    assert "Tested: " in done.stdout
    log = server.logged()
    assert "incident" not in log, log[-4000:]
    assert "Traceback" not in log, log[-4000:]
    return done.stdout


@pytest.mark.night("generated requests: 16 s")
def test_schemathesis(server: HttpServer, tmp_path: Path) -> None:
    ask_all(server, tmp_path, "--phases", "fuzzing", "--max-examples", "3", "--seed", "1")


@pytest.mark.night
@pytest.mark.timeout(1200)
def test_schemathesis_at_length(tmp_path: Path) -> None:
    """Five minutes, all phases, stateful too: a part of `make night`."""
    place = f"sqlite://{tmp_path}/jobs.db/demo"
    with running(place, tmp_path, "--rate-limit", "100000", is_open=False) as server:
        assert server.token_file is not None
        token = server.token_file.read_text()
        said = ask_all(
            server, tmp_path, "--max-time", "300", "--continue-on-failure", "-H", f"Authorization: Bearer {token}"
        )
    print(said[said.index("= SUMMARY =") :])
    assert re.search(r"Stateful.*passed", said, re.DOTALL)


def test_it_tells_of_every_endpoint(server: HttpServer) -> None:
    status, found = server.ask("GET", "/openapi.json")
    assert status == 200
    assert (found["openapi"], found["info"]["version"]) == ("3.1.0", "1")
    told = {f"{method.upper()} {path}" for path, methods in found["paths"].items() for method in methods}
    wanted = {f"PUT /api/tasks/{{id}}/{verb}" for verb in ("heartbeat", "complete", "fail", "release", "checkpoint")}
    wanted |= {"POST /api/tasks", "POST /api/tasks/next", "GET /api/tasks", "GET /api/tasks/{id}"}
    wanted |= {f"GET /api/tasks/{kind}" for kind in ("started", "processed", "dead")}
    wanted |= {
        f"GET /api/leases{kind}" for kind in ("", "/active", "/expired", "/renewed", "/released", "/confirmed", "/{id}")
    }
    wanted |= {"POST /api/leases", "PUT /api/leases/renew", "DELETE /api/leases/{id}", "DELETE /api/leases/release"}
    wanted |= {"POST /api/generator/start", "POST /api/generator/stop", "GET /api/generator"}
    wanted |= {f"{method} /api/queues/{{queue}}/batches/{{name}}" for method in ("GET", "PUT")}
    wanted |= {f"POST /api/queues/{{queue}}/batches/{{name}}/{verb}" for verb in ("seal", "reopen", "cancel")}
    wanted |= {"GET /api/queues/{queue}/batches", "GET /api/queues/{queue}/batches/{name}/tasks"}
    wanted |= {f"POST /api/queues/{{queue}}/views/{verb}" for verb in VERBS}
    wanted |= {f"POST /api/queues/{{queue}}/notes/{verb}" for verb in ("put", "page", "drop", "ended", "line")}
    wanted |= {"POST /api/views/queues", "GET /api/token", "POST /api/queues/{queue}/hasten"}
    wanted |= {"GET /api/queues/{queue}/shapes"}
    wanted |= {"GET /healthz", "GET /readyz", "GET /metrics"}
    assert wanted <= told
