"""`push --notify`: who is told of the end of a batch, of what, and by whom it can be believed."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from jobq import notify
from jobq.task import Task
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.check

_SECRETS = [base64.b64encode(bytes([number]) * 24).decode() for number in (1, 2)]


class Receiver:
    """A real HTTP server that keeps what it gets, and answers as it is told to."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], str]] = []
        self.answers: list[int] = []
        self.paths: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                receiver.paths.append(self.path)
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
                self.send_header("location", f"{receiver.url}elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                receiver.paths.append(f"GET {self.path}")
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token=hidden/"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def test_the_end_of_each_round_is_told_once_and_signed(jobq: Jobq, receiver: Receiver) -> None:
    """By each key that the worker has; a try that fails is made again under the same id."""
    receiver.answers = [503]
    jobq(
        "demo",
        "push",
        "--batch",
        "s7",
        "--notify",
        receiver.url,
        "--num-retries",
        "0",
        "-c",
        "true",
        "-c",
        f"test -e {jobq.folder}/now",
    )
    secret = {"JOBQ_WEBHOOK_SECRET": f"whsec_{_SECRETS[0]},{_SECRETS[1]}"}
    worked = jobq("demo", "worker", env=secret)
    assert len(receiver.got) == 2, worked
    first = receiver.got[0][0]["webhook-id"]
    for headers, body in receiver.got:
        assert headers["webhook-id"] == first
        text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
        wanted = [
            "v1," + base64.b64encode(hmac.new(base64.b64decode(each), text, hashlib.sha256).digest()).decode()
            for each in _SECRETS
        ]
        assert headers["webhook-signature"].split() == wanted
    told = json.loads(receiver.got[-1][1])
    assert told["type"] == "batch.finished"
    assert {name: told["data"][name] for name in ("queue", "batch", "round")} == {
        "queue": "demo",
        "batch": "s7",
        "round": 1,
    }
    assert (told["data"]["counts"]["succeeded"], told["data"]["counts"]["dead"]) == (1, 1)
    (jobq.folder / "now").touch()
    jobq("demo", "batch", "retry", "s7")
    jobq("demo", "worker")
    assert len(receiver.got) == 3
    assert receiver.got[2][0]["webhook-id"] != first
    assert "webhook-signature" not in receiver.got[2][0]
    shown = jobq("demo", "batch", "show", "s7", "--json").out + jobq("demo", "results", "--batch", "s7").out
    assert "hidden" not in shown + jobq("demo", "history", "jobq.notify.s7.2").out + worked.out + worked.err


def test_who_wants_no_more_is_not_asked_again_and_no_redirect_is_followed(jobq: Jobq, receiver: Receiver) -> None:
    for number, answer in enumerate((410, 302), 1):
        receiver.answers = [answer]
        jobq("demo", "push", "--batch", f"s{number}", "--notify", receiver.url, "-c", "true")
        jobq("demo", "worker")
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert ids[0] != ids[1] == ids[2]
    assert len(ids) == 3
    assert len(set(receiver.paths)) == 1
    assert [letter["id"] for letter in jobq("demo", "dead", "list", "--json").objects] == ["jobq.notify.s1.1"]


def test_a_forged_one_says_nothing_that_is_not_true(jobq: Jobq, receiver: Receiver) -> None:
    """What the task says of address, body and variables is not looked at; a round that has not ended is not told."""
    jobq("demo", "push", "--batch", "s7", "--open", "--notify", receiver.url, "-c", "true")
    theirs = jobq.folder / "theirs"
    theirs.mkdir()
    (theirs / "base64.py").write_text("raise SystemExit('theirs')")
    lies: dict[str, Any] = {"batch": "s7", "round": 1, "place": 0, "url": receiver.url, "headers": {}, "body": "lies"}
    jobq.fill(
        Task.new(call=notify.CALL, kwargs=lies, env={"PYTHONPATH": str(theirs)}, budgets={"retries": 0, "crashes": 0})
    )
    jobq("demo", "worker")
    assert receiver.got == []
    (letter,) = jobq("demo", "dead", "list", "--json").objects
    assert "nothing is known of an end of round 1 of batch 's7'" in letter["description"]
    jobq("demo", "batch", "seal", "s7")
    jobq("demo", "dead", "retry", "--all")
    jobq("demo", "worker")
    assert len(receiver.got) == 2
    assert all("lies" not in body and json.loads(body)["data"]["batch"] == "s7" for _, body in receiver.got)


def test_a_worker_that_is_limited_sends_to_hosts_of_its_list_alone(jobq: Jobq, receiver: Receiver) -> None:
    jobq("demo", "push", "--batch", "s7", "--notify", receiver.url, "-c", "true")
    limited = {"JOBQ_ALLOW_COMMANDS": "^true$"}
    said = jobq("demo", "worker", "--time-limit", "2s", env=limited)
    assert "127.0.0.1 is not among the hosts of JOBQ_NOTIFY_HOSTS" in said.err
    assert receiver.got == []
    jobq("other", "push", "--batch", "s7", "--notify", receiver.url, "-c", "true")
    jobq("other", "worker", env={**limited, "JOBQ_NOTIFY_HOSTS": "Example.org,127.0.0.1"})
    assert len(receiver.got) == 1


def test_what_is_no_address_and_no_secret_is_refused(jobq: Jobq) -> None:
    for url in (
        "http://me:word@host/",
        "http://a..b/",
        "http://host:word/",
        "ftp://host/",
        "hooks.example/x",
        "https://",
        "https://host/\n",
        "https://host/" + "x" * 2000,
    ):
        assert "--notify: " in jobq("demo", "push", "--batch", "s7", "--notify", url, "-c", "true", code=2).err
    jobq("demo", "create")
    refused = jobq("demo", "worker", env={"JOBQ_WEBHOOK_SECRET": "whsec_short"}, code=3)
    assert "JOBQ_WEBHOOK_SECRET: whsec_ and the base64 of 16 bytes or more" in refused.err
    assert "short" not in refused.err
