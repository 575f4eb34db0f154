"""A1: signed tasks on each kind of queue, from the push to the end, and what a service makes itself."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from jobq.signing.keys import KeyFile, SigningKey
from tests.service.server import running

from .conftest import Place, everywhere

pytestmark = pytest.mark.check


def _keys(folder: Path) -> dict[str, str]:
    key = SigningKey.new()
    key.write_new(folder / "own.key")
    KeyFile(keys=(key.trusted(),)).write(folder / "trusted.json")
    return {"JOBQ_SIGN_KEY_FILE": str(folder / "own.key"), "JOBQ_TRUSTED_KEYS": str(folder / "trusted.json")}


@everywhere
def test_a_signed_task_runs_fails_once_and_ends(place: Place) -> None:
    env = _keys(place.jobq.folder)
    fails_once = "test -e again || { touch again; exit 1; }; echo $BIG | wc -c > done"
    big = "x" * 60_000  # more than fits into a message of a Storage Queue
    (id_,) = place("push", "--ids", "--env", f"BIG={big}", "-c", fails_once, env=env).lines
    (unsigned,) = place.push("touch unsigned")
    place.work(env=env | {"JOBQ_REQUIRE_SIGNED": "on"})
    assert (place.jobq.folder / "done").read_text().strip() == "60001"
    assert not (place.jobq.folder / "unsigned").exists()
    record = place.record(id_)
    assert (record.state, record.attempt) == ("succeeded", 2)
    record = place.record(unsigned)
    assert (record.state, record.reason) == ("dead", "unsigned")
    shown = place("status", id_, "--json").out
    assert "xxxxxxxx" not in shown, "the journal and what shows it have no values of variables"


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_what_a_service_makes_it_signs(place: Place) -> None:
    env = _keys(place.jobq.folder) | {"JOBQ_AUDIENCE": "here"}
    with ExitStack() as stack:
        spec = f"sqlite://{place.jobq.folder}/served.db/demo"
        server = stack.enter_context(running(spec, place.jobq.folder, env=env))
        assert server.ask("POST", "/api/generator/start", {"rate": 50.0, "command": "true", "total": 5})[0] == 202
        where = f"http://127.0.0.1:{server.port}/demo"
        result = place.jobq(where, "worker", "--json", "--idle-timeout", "3s", env=env | {"JOBQ_REQUIRE_SIGNED": "on"})
        (stopped,) = [event for event in map(json.loads, result.lines) if event["event"] == "worker.stopped"]
        assert (stopped["succeeded"], stopped["dead_lettered"]) == (5, 0)
