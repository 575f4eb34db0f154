"""Who may do what, how much, and what leaves the service (rules.md 3, A5 and A8)."""

import http.client
import json
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from jobq.task import Task
from tests.fork_server import forked
from tests.service.server import HttpServer, running

pytestmark = pytest.mark.check

CLAIM = {"lease_seconds": 30.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("safety"))


@pytest.fixture(scope="module")
def spec(folder: Path) -> str:
    return f"sqlite://{folder}/jobs.db/demo"


def jobq(*arguments: str, code: int = 0) -> str:
    done = forked.run(
        [sys.executable, "-m", "jobq", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, (arguments, done)
    told: str = done.stdout + (done.stderr if code else "")
    return told


def token_for(spec: str, *scopes: str, queue: str = "") -> str:
    options = [word for scope in scopes for word in ("--scope", scope)] + (["--only-queue", queue] if queue else [])
    return jobq("serve", "token", "create", spec, *options).strip()


@pytest.fixture(scope="module")
def tokens(spec: str) -> dict[str, str]:
    made = {scope: token_for(spec, scope) for scope in SCOPES}
    return made | {"elsewhere": token_for(spec, "enqueue", "read", queue="other")}


@pytest.fixture(scope="module")
def server(spec: str, folder: Path, tokens: dict[str, str]) -> Iterator[HttpServer]:
    assert tokens  # made before it starts
    with running(spec, folder) as made:
        made.settle_token = tokens["settle"]
        yield made


SCOPES = ("enqueue", "lease", "settle", "watch", "view", "read", "operate", "admin")
GIVEN_BY = {"watch": {"watch", "view", "read"}, "view": {"view", "read"}, "operate": {"operate", "admin"}}
GIVEN_BY["watch or lease"] = GIVEN_BY["watch"] | {"lease"}
# What each scope permits.
CALLS: dict[str, tuple[str, str, Any, str]] = {
    "push": ("POST", "/api/tasks", {"tasks": [{"command": "true"}]}, "enqueue"),
    "make": ("PUT", "/api/queues/demo", None, "enqueue"),
    "claim": ("POST", "/api/tasks/next", CLAIM, "lease"),
    "heartbeat": ("PUT", "/api/tasks/t/heartbeat", {"receipt": "r"}, "lease"),
    "complete": ("PUT", "/api/tasks/t/complete", {"receipt": "r"}, "settle"),
    "fail": ("PUT", "/api/tasks/t/fail", {"receipt": "r"}, "settle"),
    "acquire": ("POST", "/api/leases", {"resource": "n", "ttl": 1.0}, "lease"),
    "leases": ("GET", "/api/leases", None, "view"),
    "tasks": ("GET", "/api/tasks", None, "view"),
    "journal": ("GET", "/api/queues/demo/journal/running", None, "view"),
    "peek": ("GET", "/api/queues/demo/peek", None, "read"),
    "letters": ("GET", "/api/queues/demo/dead-letters", None, "read"),
    "count": ("GET", "/api/queues/demo", None, "watch"),
    "counts": ("GET", "/api/queues/demo/journal/stats", None, "watch"),
    "shapes": ("GET", "/api/queues/demo/shapes", None, "watch or lease"),
    "metrics": ("GET", "/metrics", None, "watch"),
    "cancel": ("POST", "/api/queues/demo/journal/cancel", {"ids": []}, "operate"),
    "hasten": ("POST", "/api/queues/demo/hasten", {"ids": []}, "operate"),
    "redrive": ("POST", "/api/queues/demo/redrive", {"ids": []}, "operate"),
    "batches": ("GET", "/api/queues/demo/batches", None, "view"),
    "batch": ("GET", "/api/queues/demo/batches/s7", None, "view"),
    "members": ("GET", "/api/queues/demo/batches/s7/tasks", None, "view"),
    "begin": ("PUT", "/api/queues/demo/batches/s7", {}, "enqueue"),
    "seal": ("POST", "/api/queues/demo/batches/s7/seal", None, "enqueue"),
    "reopen": ("POST", "/api/queues/demo/batches/s7/reopen", None, "operate"),
    "end": ("POST", "/api/queues/demo/batches/s7/cancel", None, "operate"),
    "clear": ("POST", "/api/queues/demo/clear", None, "admin"),
    "purge": ("POST", "/api/queues/demo/purge", {"ids": []}, "admin"),
    "revoke": ("DELETE", "/api/leases/n", None, "admin"),
    "generate": ("POST", "/api/generator/stop", None, "admin"),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_wants_its_scope(server: HttpServer, tokens: dict[str, str], name: str) -> None:
    method, path, body, scope = CALLS[name]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for held, token in (*tokens.items(), ("none", None), ("wrong", "jobq_0123_x"), ("odd", "é" * 20)):
        headers = {} if token is None else {"Authorization": f"Bearer {token}".encode()}
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers | ({"Content-Type": "application/json"} if data else {}))
        answer = connection.getresponse()
        answer.read()
        assert answer.headers["Jobq-Service"] == "1"
        if held in GIVEN_BY.get(scope, {scope}):
            assert answer.status not in {401, 403}, (held, answer.status)
        else:
            wanted = {401, 429} if held in {"none", "wrong", "odd"} else {403}  # 429: too many guesses
            assert answer.status in wanted, (held, answer.status)
    connection.close()


def test_a_token_may_be_for_one_queue(server: HttpServer, tokens: dict[str, str]) -> None:
    token = tokens["elsewhere"]
    assert server.ask("PUT", "/api/queues/other", token=token)[0] == 202
    assert server.ask("GET", "/api/tasks?queue=other", token=token)[0] == 200
    assert server.ask("GET", "/api/tasks", token=token)[0] == 403
    assert server.ask("GET", "/api/queues", token=token) == (200, {"queues": ["other"]})


def test_tokens_are_kept_as_hashes_listed_and_revoked(
    server: HttpServer, spec: str, folder: Path, tokens: dict[str, str]
) -> None:
    token = token_for(spec, "read")
    _, token_id, secret = token.split("_", 2)
    with closing(sqlite3.connect(folder / "jobs.db")) as database:
        kept = bytes(database.execute("SELECT value FROM document WHERE name = 'tokens'").fetchone()[0]).decode()
    assert token_id in kept
    assert not any(each.split("_", 2)[2] in kept for each in (token, *tokens.values()))
    listed = jobq("serve", "token", "list", spec)
    assert token_id in listed
    assert secret not in listed
    end = time.monotonic() + 10
    while server.ask("GET", "/api/tasks", token=token)[0] != 200:  # a new token is known within two seconds
        assert time.monotonic() < end
        time.sleep(0.1)
    jobq("serve", "token", "revoke", spec, token_id)
    jobq("serve", "token", "revoke", spec, token_id, code=4)
    while server.ask("GET", "/api/tasks", token=token)[0] != 401:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_it_listens_elsewhere_with_tokens_only(tmp_path: Path) -> None:
    spec = f"sqlite://{tmp_path}/jobs.db/demo"
    said = jobq("serve", spec, "--host", "0.0.0.0", "--port", "0", code=3)
    assert "token create" in said
    token = token_for(spec, "read")
    assert "--no-token" in jobq("serve", spec, "--host", "0.0.0.0", "--port", "0", "--no-token", code=3)
    with running(spec, tmp_path, "--host", "0.0.0.0", files=256, is_open=False) as server:
        assert server.token_file is None
        with ExitStack() as idle:  # a soft limit of 1024 is common; more connections than that are to be borne
            for _ in range(300):
                idle.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=20)))
            assert server.ask("GET", "/healthz")[0] == 200
        assert server.ask("GET", "/api/tasks")[0] == 401
        assert server.ask("GET", "/api/tasks", token=token)[0] == 200
    jobq("serve", "token", "revoke", spec, token.split("_")[1])
    with running(spec, tmp_path) as server:
        assert server.ask("GET", "/api/tasks")[0] == 401, "the last token is revoked: that opens it to nobody"


def ask(server: HttpServer, method: str, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with closing(connection):
        connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_limits(server: HttpServer, tokens: dict[str, str]) -> None:
    ours = {"Authorization": f"Bearer {tokens['enqueue']}", "Content_Type": "application/json"}
    large = b'{"tasks":[{"command":"' + b"x" * 17 * 1024 * 1024 + b'"}]}'
    status, problem = ask(server, "POST", "/api/tasks", large, **ours)
    assert (status, problem["error"]["code"]) == (413, "too_large")
    text = ours | {"Content_Type": "text/plain"}
    assert ask(server, "POST", "/api/tasks", b'{"tasks":[{"command":"true"}]}', **text)[0] == 415
    for body in (b"", b"{", b"[]", b'{"tasks":[]}', b'{"tasks":[{"command":"x","command":"y"}]}', b"[" * 100_000):
        assert ask(server, "POST", "/api/tasks", body, **ours)[0] == 400, body[:50]
    assert ask(server, "GET", "/api/tasks?" + "x" * 20_000, b"", **ours)[0] in {400, 403}


def test_a_caller_may_not_crowd_out_others(spec: str, folder: Path, tokens: dict[str, str]) -> None:
    other = token_for(spec, "read")
    with running(spec, folder, "--rate-limit", "5") as server:
        statuses = [server.ask("GET", "/api/tasks", token=tokens["read"])[0] for _ in range(20)]
        assert statuses.count(429) >= 5
        assert server.ask("GET", "/api/tasks", token=other)[0] == 200
        guesses = [server.ask("GET", "/api/tasks", token=f"jobq_00_{n}")[0] for n in range(30)]
        assert set(guesses) == {401, 429}


def test_the_audit_has_one_line_for_each_change(server: HttpServer, tokens: dict[str, str]) -> None:
    def changes() -> list[dict[str, Any]]:  # the tokens were made just now: the service notes them when it reads them
        return [line for line in audit(server) if not line["did"].startswith("token ")]

    before = len(changes())
    body = {"tasks": [{"command": "canary-command", "env": {"SECRET": "canary-value"}}]}
    (task_id,) = server.ask("POST", "/api/tasks", body, token=tokens["enqueue"])[1]["ids"]
    server.ask("GET", "/api/tasks", token=tokens["read"])
    server.ask("PUT", f"/api/tasks/{task_id}/complete", {"receipt": "r"}, token=tokens["settle"])
    lines = changes()[before:]
    assert [(line["did"], line["ids"], line["status"]) for line in lines] == [
        ("POST /api/tasks", [task_id], 202),
        ("PUT /api/tasks/{id}/complete", [task_id], 409),
    ]
    assert lines[0]["caller"] == tokens["enqueue"].split("_")[1]
    other = {"tasks": [{"command": "another"}, body["tasks"][0]]}
    server.ask("POST", "/api/tasks", other, token=tokens["enqueue"])
    (pushed,) = changes()[before + 2 :]
    assert pushed["work"][1] == lines[0]["work"][0] != pushed["work"][0], "the same work, by any pusher at any time"
    log = server.logged()
    assert "canary" not in log
    assert not any(token.split("_", 2)[2] in log for token in tokens.values())


def test_the_audit_names_each_task_of_a_change(server: HttpServer, tokens: dict[str, str]) -> None:
    """However many there are, in lines of a bounded length: so who pushed a dead letter, or took it away, is found."""

    def lines(did: str) -> list[dict[str, Any]]:
        return [line for line in audit(server) if line["did"] == did and line["status"] == 202]

    tasks = [{"command": f"echo {number}", "id": f"of-many-{number:04}"} for number in range(250)]
    ids = [str(each["id"]) for each in tasks]
    server.ask("PUT", "/api/queues/told", token=tokens["enqueue"])
    server.ask("POST", "/api/tasks?queue=told", {"tasks": tasks}, token=tokens["enqueue"])
    pushed = lines("POST /api/tasks")[-3:]
    assert [len(line["ids"]) for line in pushed] == [len(line["work"]) for line in pushed] == [100, 100, 50]
    assert [id_ for line in pushed for id_ in line["ids"]] == ids
    works = [work for line in pushed for work in line["work"]]
    assert works == [Task.new(**each).fingerprint().hex() for each in tasks]
    assert {(line["count"], line["status"]) for line in pushed} == {(250, 202)}
    queue = "/api/queues/told"
    for who, verb in (("operate", "hasten"), ("operate", "redrive"), ("admin", "purge"), ("operate", "journal/cancel")):
        server.ask("POST", f"{queue}/{verb}", {"ids": ids}, token=tokens[who])
    for verb in ("hasten", "journal/cancel"):
        found = lines(f"POST /api/queues/{{queue}}/{verb}")
        assert [id_ for line in found for id_ in line["ids"]] == ids, verb
    task = {"command": "true", "id": "to-be-buried"}
    server.ask("POST", "/api/tasks?queue=told", {"tasks": [task]}, token=tokens["enqueue"])
    (claimed,) = server.ask("POST", "/api/tasks/next?queue=told", CLAIM, token=tokens["lease"])[1]["tasks"]
    letter = {"receipt": claimed["receipt"], "reason": "failed"}
    server.ask("PUT", "/api/tasks/to-be-buried/dead-letter?queue=told", letter, token=tokens["settle"])
    for who, verb in (("operate", "redrive"), ("admin", "purge")):
        server.ask("POST", f"{queue}/{verb}", {"ids": ["to-be-buried", "never-there"]}, token=tokens[who])
        found = lines(f"POST /api/queues/{{queue}}/{verb}")
        assert found[-1]["ids"] == (["to-be-buried"] if verb == "redrive" else []), "what was done"


def test_no_answer_names_the_place_of_the_store(tmp_path: Path) -> None:
    """A5: not of a queue that was deleted under the service, nor of a file that is gone or no database any more."""
    file = tmp_path / "jobs.db"
    spec = f"sqlite://{file}/demo"
    with running(spec, tmp_path) as server:
        paths = server.ask("GET", "/openapi.json")[1]["paths"]
        calls = [(method.upper(), path) for path, methods in paths.items() for method in methods if path != "/metrics"]
        token = token_for(spec, *SCOPES)
        server.ask("PUT", "/api/queues/gone", token=token)
        server.ask("GET", "/api/queues/gone", token=token)
        jobq(f"sqlite://{file}/gone", "delete", "--force")
        answers = []

        def ask_all() -> None:
            for method, named in calls:
                path = named.replace("{queue}", "gone").replace("{id}", "x").replace("{name}", "x")
                where = path if "/queues/" in path else f"{path}?queue=gone"
                answers.append(server.ask(method, where, {} if method in ("POST", "PUT") else None, token=token))

        ask_all()
        assert 404 in {status for status, _ in answers}
        file.write_bytes(b"no database" * 1000)
        ask_all()
        file.unlink()
        ask_all()
    assert {404, 503} <= {status for status, _ in answers}
    assert not [answer for answer in answers if str(tmp_path) in json.dumps(answer)]


def test_refusals_and_tokens_are_in_the_audit(tmp_path: Path) -> None:
    """Who tried what, and with which token; one who floods the service does not flood its log."""
    place = f"sqlite://{tmp_path}/jobs.db/demo"
    worker, settler = token_for(place, "lease"), token_for(place, "settle")
    with running(place, tmp_path, "--rate-limit", "20") as server:
        server.settle_token = settler

        def lines(status: int) -> list[tuple[str, str]]:
            return [(line["caller"], line["did"]) for line in audit(server) if line.get("status") == status]

        assert server.ask("POST", "/api/tasks", {"tasks": [{"command": "true"}]})[0] == 401
        assert server.ask("GET", "/api/tasks", token="jobq_00_canary")[0] == 401
        assert lines(401) == [("-", "POST /api/tasks"), ("-", "GET /api/tasks")]
        id_ = worker.split("_")[1]
        assert server.ask("POST", "/api/tasks", {"tasks": [{"command": "true"}]}, token=worker)[0] == 403
        assert server.ask("DELETE", "/api/leases/n", token=worker)[0] == 403
        assert lines(403) == [(id_, "POST /api/tasks"), (id_, "DELETE /api/leases/{id}")]
        statuses = [server.ask("GET", "/api/tasks", token=worker)[0] for _ in range(150)]
        assert statuses.count(403) > 2
        assert statuses.count(429) > 2
        assert lines(403)[2:] == lines(429) == [(id_, "GET /api/tasks")]
        made = token_for(place, "view", queue="demo").split("_")[1]
        jobq("serve", "token", "revoke", place, id_)
        end = time.monotonic() + 10
        while len(found := [line for line in audit(server) if line["did"].startswith("token ")]) < 2:
            assert time.monotonic() < end
            server.ask("GET", "/api/tasks", token="jobq_00_x")
            time.sleep(0.1)
        told = {line["did"]: (line["token"], line["scopes"], line["queues"]) for line in found}
        assert told == {"token made": (made, ["view"], ["demo"]), "token revoked": (id_, ["lease"], ["*"])}
        server.stop()
        counted = {
            line["status"]: line["more"]
            for line in audit(server)
            if line["did"] == "GET /api/tasks" and "more" in line and line["caller"] == id_
        }
        assert counted == {status: statuses.count(status) - 1 for status in (403, 429)}
        assert "canary" not in server.logged()
        assert worker.split("_", 2)[2] not in server.logged()


def test_who_may_view_sees_no_values_of_variables(server: HttpServer, tokens: dict[str, str]) -> None:
    """Wherever tasks are shown: what runs, not with what; the bodies are for those who may read."""
    task = {"command": "echo shown-command", "env": {"SECRET": "canary-of-view"}}
    (id_,) = server.ask("POST", "/api/tasks", {"tasks": [task]}, token=tokens["enqueue"])[1]["ids"]
    paths = [each.replace("{id}", id_) for each in server.ask("GET", "/openapi.json")[1]["paths"]]
    seen = {}
    for who in ("view", "read"):
        answers = [server.ask("GET", path, token=tokens[who]) for path in paths if path != "/metrics"]
        answers.append(server.ask("POST", "/api/queues/demo/journal/find", {"ids": [id_]}, token=tokens[who]))
        seen[who] = json.dumps(answers)
    assert "canary-of-view" in seen["read"]
    assert "canary-of-view" not in seen["view"]
    assert "shown-command" in seen["view"]


def test_who_pushes_to_a_batch_is_told_how_it_stands_and_nothing_of_it(
    server: HttpServer, tokens: dict[str, str]
) -> None:
    """What its tasks are and what came of them is for who may look; numbers are for who operates, too."""
    path, seen = "/api/queues/demo/batches/told", {}
    then = json.dumps({"version": 2, "id": "a", "command": "echo then", "env": {"SECRET": "canary-of-then"}})
    mine = {"template": "train-this", "then": [then]}
    assert server.ask("PUT", path, mine, token=tokens["enqueue"])[0] == 202
    task = {"command": "true", "batch": "told", "params": {"seed": 7}}
    assert server.ask("POST", "/api/tasks", {"tasks": [task]}, token=tokens["enqueue"])[0] == 202
    for who, method, verb, body in (
        ("enqueue", "PUT", "", {}),
        ("operate", "POST", "/reopen", None),
        ("enqueue", "POST", "/seal", None),
        ("operate", "POST", "/cancel", None),
        ("view", "GET", "", None),
    ):
        status, found = server.ask(method, path + verb, body, token=tokens[who])
        assert status == (200 if method == "GET" else 202), found
        seen[who, verb] = (found["state"], found["total"], found["template"], bool(found["counts"]))
        assert "canary-of-then" not in json.dumps(found)
    assert seen == {
        ("enqueue", ""): ("open", None, "", False),
        ("operate", "/reopen"): ("open", 1, "", True),
        ("enqueue", "/seal"): ("sealed", None, "", False),
        ("operate", "/cancel"): ("finished", 1, "", True),
        ("view", ""): ("finished", 1, "train-this", True),
    }
    status, members = server.ask("GET", f"{path}/tasks", token=tokens["view"])
    assert (status, [(each["state"], each["params"]) for each in members["tasks"]]) == (
        200,
        [("canceled", {"seed": 7})],
    )


def test_the_audit_has_changes_of_batches(server: HttpServer, tokens: dict[str, str]) -> None:
    """With the name, and with what is to run at the end, as of a push: so who has said it is found."""
    path, before = "/api/queues/demo/batches/audited", len(audit(server))
    work = {"command": "echo audited-canary", "env": {"SECRET": "audited-canary"}}
    server.ask("POST", "/api/tasks", {"tasks": [work]}, token=tokens["enqueue"])
    then = json.dumps({"version": 2, "id": "a", **work})
    server.ask("PUT", path, {"then": [then]}, token=tokens["enqueue"])
    server.ask("PUT", path, {"then": ["no task"]}, token=tokens["enqueue"])
    for who, verb in (("enqueue", "seal"), ("operate", "reopen"), ("operate", "cancel"), ("view", "")):
        server.ask("POST" if verb else "GET", f"{path}/{verb}".rstrip("/"), token=tokens[who])
    pushed, *lines = [line for line in audit(server)[before:] if not line["did"].startswith("token ")]
    prefix = "/api/queues/{queue}/batches/{name}"
    assert [(line["did"], line["batch"], line["status"]) for line in lines] == [
        (f"PUT {prefix}", "audited", 202),
        (f"PUT {prefix}", "audited", 400),
        (f"POST {prefix}/seal", "audited", 202),
        (f"POST {prefix}/reopen", "audited", 202),
        (f"POST {prefix}/cancel", "audited", 202),
    ]
    assert [lines[0]["caller"], lines[3]["caller"]] == [tokens[who].split("_")[1] for who in ("enqueue", "operate")]
    assert lines[0]["work"] == pushed["work"]
    assert "audited-canary" not in server.logged()


def audit(server: HttpServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.logged().splitlines() if line.startswith('{"at"')]


def test_without_tokens_a_page_of_another_name_gets_nothing(tmp_path: Path) -> None:
    """A browser that was led to 127.0.0.1 by another name: its Host tells."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path) as server:
        assert ask(server, "GET", "/api/tasks", b"", Host="evil.example.org")[0] == 403
        here = f"localhost:{server.port}"
        assert ask(server, "GET", "/api/tasks", b"", Host=here)[0] == 200
        # A page may send a POST without a body anywhere, unasked: it must not clear the queue of who looks at it.
        clear = "/api/queues/demo/clear"
        for said in ({"Origin": "https://evil.example.org"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
            assert ask(server, "POST", clear, b"", Host=here, **said)[0] == 403
        assert (
            ask(server, "POST", clear, b"", Host=here, Origin=f"http://{here}", Sec_Fetch_Site="same-origin")[0] == 202
        )


def test_a_header_that_decides_stands_in_the_head_and_once(server: HttpServer, tokens: dict[str, str]) -> None:
    """Else a proxy before the service would judge by another one than the service."""
    good = f"Authorization: Bearer {tokens['enqueue']}\r\n"
    head = "POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    body = '{"tasks":[{"command":"true"}]}'
    chunked = f"Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n"
    plain = f"Content-Length: {len(body)}\r\n\r\n{body}"
    for request, status in (
        (head + good + plain, b"202"),
        (head + good + chunked + "\r\n", b"202"),
        (head + "Authorization: Bearer jobq_00_x\r\n" + good + plain, b"400"),
        (head + chunked + good + "\r\n", b"401"),
    ):
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=20)) as connection:
            connection.sendall(request.encode())
            assert connection.recv(65536)[9:12] == status, request


def test_the_generators_lease_is_the_admins(server: HttpServer, tokens: dict[str, str]) -> None:
    """Who may lease tasks could else hold the generator up, or leave it a cursor that no replica can read."""
    request = {"resource": "jobq.generator", "ttl": 10.0}
    assert server.ask("POST", "/api/leases", request, token=tokens["lease"])[0] == 403
    assert server.ask("DELETE", "/api/leases/jobq.generator?token=1", token=tokens["lease"])[0] == 403


def test_figures_are_the_default_queues(server: HttpServer, tokens: dict[str, str]) -> None:
    """A token of another queue learns nothing of it, whatever queue the request names."""
    assert server.ask("GET", "/metrics?queue=other", token=tokens["elsewhere"])[0] == 403
