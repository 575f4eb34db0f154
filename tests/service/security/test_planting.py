"""A worker's token plants nothing: what was pushed is what runs, whatever is said at the wire in settling it (S2)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Jobq
from tests.service.server import HttpServer, running
from tests.sqlite.support import ask as sqlite_ask

PUSHED = {
    "command": "echo honest",
    "env": {"WHO": "producer"},
    "cwd": "/tmp",
    "timeout": 60.0,
    "priority": 3,
    "budgets": {"retries": 1, "preemptions": 2, "crashes": 3},
    "on_exit": ["3=fail"],
}
PLANTED = {
    "command": "echo planted",
    "env": {"LD_PRELOAD": "/tmp/planted.so"},
    "cwd": "/",
    "timeout": 1.0,
    "priority": 9,
    "budgets": {"retries": 99, "preemptions": 99, "crashes": 99},
    "on_exit": ["3=queue:planted"],
    "epoch": 7,
    "created": 1.0,
    "trace_context": {"baggage": "planted"},
}
_SPOIL = "UPDATE task SET body = ? WHERE id = ?"
COUNTED = ("counters", "generation", "epoch")  # what may change: it only rises


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = Path(tmp_path_factory.mktemp("planting"))
    jobq = Jobq(folder)
    spec = f"sqlite://{folder}/jobs.db/demo"
    for name, scopes in (("producer", ["enqueue"]), ("worker", ["lease", "settle"]), ("admin", ["admin", "read"])):
        options = [word for scope in scopes for word in ("--scope", scope)]
        TOKENS[name] = jobq("serve", "token", "create", spec, *options).out.strip()
    with running(spec, folder) as made:
        yield made


TOKENS: dict[str, str] = {}  # of each role


def ask(server: HttpServer, who: str, method: str, path: str, body: Any = None, status: int = 202) -> Any:
    found, answer = server.ask(method, path, body, token=TOKENS[who])
    assert found == status, (path, body, answer)
    return answer


def leased(server: HttpServer) -> dict[str, Any]:
    """Return the one task, leased by the worker, as soon as it is there."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = ask(server, "worker", "POST", "/api/tasks/next", {"wait_seconds": 5.0}, 200)["tasks"]
        if found:
            (held,) = found
            return dict(held)
    raise AssertionError("it does not come back")


def work(task: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name not in COUNTED}


def test_no_settle_of_a_worker_changes_what_runs(server: HttpServer) -> None:
    """No settle takes a task, alone or among several, nor does a dead letter that is redriven."""
    (id_,) = ask(server, "producer", "POST", "/api/tasks", {"tasks": [PUSHED]})["ids"]
    held = leased(server)
    honest = work(held["task"])
    assert honest.items() >= PUSHED.items()

    evil = PLANTED | {"id": id_, "counters": {"failures": 1, "ends": 1}}
    epoch = held["task"]["epoch"]

    counted = {"counters": evil["counters"]}
    item = {"receipt": held["receipt"], "verb": "requeue", "id": id_, **counted}
    settles = {"settles": [item | {"task": evil}, item]}
    several = ask(server, "worker", "POST", "/api/tasks/settle", settles, 200)["answers"]
    assert [answer["status"] for answer in several] == [400, 202]
    held = leased(server)
    assert work(held["task"]) == honest
    assert held["task"]["epoch"] == epoch
    receipt = {"receipt": held["receipt"]}
    for verb, more in (
        ("requeue", counted),
        ("complete", {}),
        ("fail", {}),
        ("release", {}),
        ("heartbeat", {}),
        ("dead-letter", {"reason": "failed"}),
        ("checkpoint", {"value": "1"}),
    ):  # a body is nowhere taken beside what they are for
        for field in ("task", "body", "command", "env", "budgets"):
            ask(server, "worker", "PUT", f"/api/tasks/{id_}/{verb}", receipt | more | {field: evil}, 400)
    planted = {"reason": "failed", "description": json.dumps(evil)}
    ask(server, "worker", "PUT", f"/api/tasks/{id_}/dead-letter", receipt | planted)
    for who, body, status in (("worker", {"ids": [id_]}, 403), ("admin", {"ids": [id_], "task": evil}, 400)):
        ask(server, who, "POST", "/api/queues/demo/redrive", body, status)
    (letter,) = ask(server, "admin", "GET", "/api/queues/demo/dead-letters", status=200)["tasks"]
    assert work(json.loads(letter["body"])) == {"version": 2} | honest
    ask(server, "admin", "POST", "/api/queues/demo/redrive", {"ids": [id_]})
    held = leased(server)
    assert work(held["task"]) == honest
    ask(server, "worker", "PUT", f"/api/tasks/{id_}/complete", {"receipt": held["receipt"], "value": evil})
    shown = ask(server, "admin", "GET", f"/api/tasks/{id_}", status=200)
    assert "planted" not in json.dumps(shown.get("task"))


def test_what_is_no_task_stays_what_it_is(server: HttpServer) -> None:
    """Of a body that nobody can read, a requeue makes none that somebody can."""
    (id_,) = ask(server, "producer", "POST", "/api/tasks", {"tasks": [PUSHED]})["ids"]
    wrong = {"version": 99, "id": id_}
    sqlite_ask(Path(server.spec.removeprefix("sqlite://")).parent, _SPOIL, json.dumps(wrong).encode(), id_)
    held = leased(server)
    assert json.loads(held["body"]) == wrong
    item = {"receipt": held["receipt"], "counters": {"failures": 1}}
    ask(server, "worker", "PUT", f"/api/tasks/{id_}/requeue", item)
    held = leased(server)
    assert json.loads(held["body"]) == wrong
    ask(server, "worker", "PUT", f"/api/tasks/{id_}/dead-letter", {"receipt": held["receipt"], "reason": "malformed"})
    (letter,) = ask(server, "admin", "GET", "/api/queues/demo/dead-letters", status=200)["tasks"]
    assert json.loads(letter["body"]) == wrong


def test_a_worker_pushes_nothing(server: HttpServer) -> None:
    """Nor makes a queue, starts the generator, clears, hastens, redrives or purges."""
    for method, path, body in (
        ("POST", "/api/tasks", {"tasks": [PLANTED]}),
        ("PUT", "/api/queues/planted", None),
        ("POST", "/api/generator/start", {"command": "echo planted"}),
        ("POST", "/api/queues/demo/clear", None),
        ("POST", "/api/queues/demo/redrive", {"ids": []}),
        ("POST", "/api/queues/demo/hasten", {"ids": []}),
        ("POST", "/api/queues/demo/purge", {"ids": []}),
        ("POST", "/api/queues/demo/journal/cancel", {"ids": []}),
        ("PUT", "/api/queues/demo/batches/planted", {"then": [json.dumps({"version": 2, "id": "a"} | PLANTED)]}),
        ("POST", "/api/queues/demo/batches/planted/seal", None),
        ("POST", "/api/queues/demo/batches/planted/reopen", None),
        ("POST", "/api/queues/demo/batches/planted/cancel", None),
    ):
        ask(server, "worker", method, path, body, 403)
