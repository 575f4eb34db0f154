"""The real command line over HTTP, each command in a process of its own (architecture 12)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq
from tests.service.server import HttpServer, running

CANARY = "canary7391"


@pytest.fixture
def jobq(tmp_path: Path) -> Jobq:
    return Jobq(tmp_path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[HttpServer]:
    with running(f"sqlite://{tmp_path}/served.db/demo", tmp_path) as server:
        yield server


def test_a_queue_behaves_like_any_other(jobq: Jobq, served: HttpServer) -> None:
    spec = f"{served.url}/work"
    assert (
        "created queue work" in jobq(spec, "push", "-c", "echo done >> out", "-c", "exit 3", "--num-retries", "0").err
    )
    size, peek = jobq.all([spec, "size", "--json"], [spec, "peek"], code=0)
    assert size.objects == [{"visible": 2, "leased": 0, "scheduled": 0, "dead": 0}]
    assert "echo done" in peek.out
    jobq(spec, "worker", "-n", "2")
    assert (jobq.folder / "out").read_text() == "done\n"
    (dead,) = jobq(spec, "dead", "list", "--json").objects
    assert dead["reason"] == "failed"
    jobq(spec, "dead", "retry", "--all")
    jobq(spec, "clear", "--yes")
    jobq(spec, "size", "--fail-if-empty", code=4)
    assert jobq(spec, "lease", "run", "nightly", "--", "sh", "-c", "exit 7", code=7).code == 7
    (lease,) = jobq(spec, "lease", "list", "--json").objects
    assert (lease["name"], lease["state"], lease["token"]) == ("nightly", "released", 1)


def test_tokens_from_the_environment_alone(jobq: Jobq, served: HttpServer) -> None:
    spec = f"{served.url}/demo"
    place = served.spec
    token = jobq("serve", "token", "create", place, "--scope", "read", "--scope", "enqueue").out.strip()
    served.stop()
    served.start()
    told = jobq(spec, "size", code=3, env={"JOBQ_HTTP_TOKEN": f"jobq_00_{CANARY}"}).err
    assert "JOBQ_HTTP_TOKEN" in told
    assert CANARY not in told
    ours = {"JOBQ_HTTP_TOKEN": token}
    jobq(spec, "push", "-c", "true", env=ours)
    assert "visible" in jobq(spec, "size", env=ours).out
    refused = jobq(spec, "worker", code=3, env=ours)
    assert "does not permit lease" in refused.err
    assert "***" in jobq("config", env=ours).out or token not in jobq("config", env=ours).out


@pytest.mark.parametrize("at", ["me:{}@127.0.0.1:1", "{}@127.0.0.1:1", "127.0.0.1:1/p?token={}", "127.0.0.1:1/p;{}"])
def test_a_secret_in_a_spec_is_refused_and_not_repeated(jobq: Jobq, at: str) -> None:
    """A5, A7."""
    done = jobq(f"http://{at.format(CANARY)}/demo", "size", code=None)
    assert done.code == (75 if ";" in at else 3), done
    assert CANARY not in done.out + done.err or ";" in at


def test_a_queue_that_is_missing_is_made_by_a_command_that_can_be_copied(jobq: Jobq, served: HttpServer) -> None:
    spec = f"{served.url}/nobody-made-this"
    assert f"does not exist; `jobq {spec} create` makes it" in jobq(spec, "size", code=4).err


def test_exit_codes(jobq: Jobq, served: HttpServer) -> None:
    away = "http://127.0.0.1:1/demo"
    first, second = jobq.all([away, "size"], [away, "push", "-c", "true"], code=75)
    assert "cannot be reached" in first.err
    assert "cannot be reached" in second.err
    first, second = jobq.all(["http:///demo", "size"], [f"{served.url}/demo", "create", "--no-exist-ok"], code=3)
    assert "names no host" in first.err
    assert "exists already" in second.err
    first, second = jobq.all([f"{served.url}/nowhere", "worker"], [f"{served.url}/nowhere", "size"], code=4)
    assert re.search(r"no .*queue|not exist", first.err)
    held = jobq.start(f"{served.url}/demo", "lease", "run", "name", "--", "sh", "-c", "echo held; sleep 60")
    assert held.stdout is not None
    assert held.stdout.readline() == b"held\n"
    assert "held by" in jobq(f"{served.url}/demo", "lease", "run", "name", "--no-wait", "--", "true", code=75).err
    held.terminate()
    held.communicate(timeout=20)
    other = jobq("serve", served.spec, "--port", str(served.port), code=3).err
    assert "cannot listen" in other


def test_what_is_nested_deep_over_http_ends_like_anything_else(jobq: Jobq, served: HttpServer) -> None:
    """L1: results and arguments that were taken and could never be settled: good tasks ran four times, and died."""
    spec = f"{served.url}/demo"
    lists = "[" * 30 + "]" * 30
    fills = f"echo '{lists}' > $JOBQ_RESULT_FILE; echo ran >> deep"
    jobq(spec, "push", "-c", fills, "-c", "echo ran >> neighbour")
    deepest, deeper = (json.dumps({"a": json.loads("[" * depth + "]" * depth)}) for depth in (30, 31))
    task = json.dumps({"call": "operator:no_such", "kwargs": json.loads(deepest), "budgets": {"retries": 1}})
    jobq(spec, "push", "-", stdin=task)
    refused = jobq(spec, "push", "-", stdin=json.dumps({"call": "json:dumps", "kwargs": json.loads(deeper)}), code=None)
    assert refused.code != 0
    assert "deep" in refused.err
    jobq(spec, "worker", "-n", "3", "--backoff", "10ms", code=None)
    assert (jobq.folder / "deep").read_text() == "ran\n"
    assert (jobq.folder / "neighbour").read_text() == "ran\n"
    (dead,) = jobq(spec, "dead", "list", "--json").objects
    assert dead["reason"] == "failed", dead
    assert jobq(spec, "size", "--json").objects == [{"visible": 0, "leased": 0, "scheduled": 0, "dead": 1}]


def test_a_worker_gets_what_fits_from_behind_what_does_not(jobq: Jobq, served: HttpServer) -> None:
    """And touches nothing of what it cannot run."""
    spec = f"{served.url}/shapes"
    jobq(spec, "push", "--gpus", "1", stdin="true\n" * 50)
    jobq(spec, "push", "--cpus", "1", "-c", "echo small")
    jobq(spec, "push", "-c", "echo plain")
    shown = jobq(spec, "worker", "--cpus", "1")
    assert "small" in shown.out
    assert "plain" in shown.out
    assert "50 tasks wait that this worker cannot run: gpus=1 (50)" in shown.err
    size, peek = jobq.all([spec, "size", "--by", "shape", "--json"], [spec, "peek", "-n", "100", "--json"], code=0)
    assert size.objects == [{"visible": 50, "gpus": 1000}]
    assert [task["deliveries"] for task in peek.objects] == [0] * 50


@pytest.mark.night("waits for rooms that fall free: 13 s")
def test_what_is_freed_is_used_at_once(jobq: Jobq, served: HttpServer) -> None:
    """The claim that waits for less room is given up for one with more."""
    spec = f"{served.url}/freed"
    jobq(spec, "push", "--cpus", "1", "-c", "sleep 2; date +%s.%N > ended", "-c", "sleep 12")
    jobq(spec, "push", "--cpus", "2", "-c", "date +%s.%N > began")
    jobq(spec, "worker", "-n", "3", "--cpus", "3")
    ended, began = (float((jobq.folder / name).read_text()) for name in ("ended", "began"))
    assert 0 < began - ended < 5  # and not when the other one has ended
