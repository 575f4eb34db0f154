"""The command line with leases on blobs: `lease run`, and a push that is interrupted between its batches."""

import json
from collections import Counter
from pathlib import Path

import pytest

from jobq.task import Task, new_id
from tests.azure.emulator import ACCOUNT, Azurite
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.check


@pytest.fixture
def jobq(tmp_path: Path, azurite: Azurite) -> Jobq:
    made = Jobq(tmp_path)
    made.environment |= {
        "JOBQ_CONNECTION_STRING": azurite.connection_string,
        "JOBQ_QUEUE": f"{ACCOUNT}/q-{new_id()[-12:]}",
        "JOBQ_LEASE_TTL": "15s",
    }
    return made


def test_a_command_runs_under_a_blobs_lease(jobq: Jobq) -> None:
    for token in (1, 2):
        assert (
            jobq("lease", "run", "one", "--", "sh", "-c", "echo $JOBQ_LEASE_TOKEN; exit 3", code=3).out == f"{token}\n"
        )
    (record,) = jobq("lease", "list", "--json").objects
    assert (record["state"], record["token"], record["remaining_s"]) == ("released", 2, None)
    assert "this store grants 15s to 1m" in jobq("lease", "run", "one", "--ttl", "2m", "--", "true", code=3).err


def test_a_push_goes_on_where_it_was_interrupted_and_repeats_a_batch_at_most(jobq: Jobq) -> None:
    """No id is known again here: what was queued and not yet saved when it ended comes twice, and nothing is lost."""
    file = jobq.folder / "f"
    lines = [f"echo {number}" for number in range(520)]
    file.write_text("\n".join([*lines[:510], '{"nonsense": 1}', *lines[511:]]))
    assert "line 511" in jobq("push", "--resume", "n", "f", code=2).err  # 500 and saved, 10 and not
    file.write_text("\n".join(lines))
    result = jobq("push", "--resume", "n", "f", "--accept-changes", "--ids")
    assert "going on with f at line 501" in result.err
    assert len(result.lines) == 20
    seen = Counter(command_of(one) for one in jobq("peek", "-n", "32", "--json").objects)
    assert all(command in lines for command in seen)
    assert jobq("size", "--json").objects[0]["total"] == 520 + 10
    assert "is done" in jobq("push", "--resume", "n", "f", "--accept-changes").err


def command_of(shown: dict[str, object]) -> str:
    task = shown["task"]
    assert isinstance(task, dict), json.dumps(shown)
    return str(Task.new(command=task["command"]).command)
