"""What a command says from inside of its task: durable checkpoints, fenced; progress with the heartbeat."""

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq, eventually

from .conftest import Place, beside

pytestmark = pytest.mark.check

JOBQ = f"{sys.executable} -m jobq"


@beside
def test_a_checkpoint_is_found_by_the_next_attempt(place: Place) -> None:
    """Also when the worker is killed right after it was acknowledged."""
    (id_,) = place.push(
        f'echo "$JOBQ_CHECKPOINT" >> seen; test -n "$JOBQ_CHECKPOINT" || {{ {JOBQ} checkpoint "epoch 3" && touch saved;'
        " sleep 60; }"
    )
    worker = place.start_worker()
    eventually((place.jobq.folder / "saved").exists)
    place.kill_worker(worker)
    if not place.is_azure:  # there it rides in the message, which nobody can look into while it is leased
        assert place.status(id_)["checkpoint"] == "epoch 3"
    place.until(id_, lambda record: record.state == "expired")
    # The service hides a message a little longer than its journal says.
    place.work(*(("--idle-timeout", "3s") if place.is_azure else ()))
    assert (place.jobq.folder / "seen").read_text() == "\nepoch 3\n"


def test_progress_is_seen(place: Place) -> None:
    helper = 'import jobq; jobq.progress(0.42, "epoch\\u202e 3")'
    (place.jobq.folder / "helper.py").write_text(helper)
    (id_,) = place.push(f"{sys.executable} helper.py; sleep 60")
    place.start_worker()
    place.until(id_, lambda record: record.beat is not None and record.beat.progress == 0.42)
    assert "42% epoch\\u202e 3" in place("ps").out
    assert place("ps", "--json").objects[0]["running"]["text"] == "epoch\u202e 3"


@pytest.mark.parametrize("arguments", [("checkpoint", "x"), ("progress", "0.5")])
def test_outside_of_a_task(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert "not run by a jobq worker" in Jobq(tmp_path)(*arguments, code=3).err


def test_what_cannot_be_said(tmp_path: Path) -> None:
    """Refusals name the fault; a neighbour's or an old token counts for nothing (S4, S11)."""
    jobq = Jobq(tmp_path)
    jobq(
        "demo", "push",
        "-c", f"{JOBQ} progress 1.5; echo $? > share",
        "-c", f"head -c 70000 /dev/zero | tr '\\0' x | {JOBQ} checkpoint -; echo $? > long",
        "-c", f"JOBQ_TASK_SOCKET=0@${{JOBQ_TASK_SOCKET#*@}} {JOBQ} checkpoint x; echo $? > token",
        "-c", f"JOBQ_TASK_SOCKET=0@/nowhere {JOBQ} checkpoint x; echo $? > socket",
    )  # fmt: skip
    jobq("demo", "worker", "-n", "2", env={"JOBQ_SCHEDULED_EVENTS": "off"})
    codes = {name: int((tmp_path / name).read_text()) for name in ("share", "long", "token", "socket")}
    assert codes == {"share": 3, "long": 3, "token": 1, "socket": 75}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who is at the other end of a socket")
def test_a6_a_neighbour_that_has_read_the_token_cannot_speak_for_a_task(tmp_path: Path) -> None:
    """An orphan of the task itself can: its leader has adopted it."""
    jobq = Jobq(tmp_path)
    orphan = (
        f"(setsid sh -c 'sleep 0.2; {JOBQ} checkpoint own; echo $? > own' &) ; until [ -e own ]; do sleep 0.1; done"
    )
    steal = "until [ -s token ]; do sleep 0.1; done; export JOBQ_TASK_SOCKET=$(cat token)"
    jobq(
        "demo", "push",
        "-c", f"echo $JOBQ_TASK_SOCKET > token; until [ -e forged ]; do sleep 0.1; done; {orphan}",
        "-c", f"{steal}; {JOBQ} checkpoint forged 2> says; echo $? > code; mv code forged",
    )  # fmt: skip
    result = jobq("demo", "worker", "-n", "2", "--log-format", "text", env={"JOBQ_SCHEDULED_EVENTS": "off"})
    assert [int((tmp_path / name).read_text()) for name in ("forged", "own")] == [3, 0]
    assert "this process was not started by the task that it speaks for" in (tmp_path / "says").read_text()
    assert "has tried to speak for it" in result.err
