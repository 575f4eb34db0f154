"""`push --wait` over several runs and under impatient hands; progress that comes soon; what counts as 64 KiB."""

import signal
import time

import pytest

from jobq.journal.records import MAX_OUTPUT_BYTES, TaskState, end_of

from .conftest import SHORT, Place
from .test_inside import JOBQ


def test_wait_and_resume(place: Place) -> None:
    """The second run waits for what the first has queued, and both end alike."""
    (place.jobq.folder / "lines").write_text("true\n\nexit 3\ntrue\n")
    place("push", "--resume", "nightly", "lines")
    place.work("--backoff", "10ms", "--backoff-max", "10ms")
    told = place("push", "--resume", "nightly", "--wait", "--json", "lines", code=3)
    ended = {found["id"]: found["exit_code"] for found in told.objects}
    assert sorted(ended.values()) == [0, 0, 3]
    assert "--accept-changes" in place("push", "--resume", "x", "--wait", "--accept-changes", "lines", code=2).err


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # which store it is is no matter here
def test_two_interrupts_end_the_wait_at_once(place: Place) -> None:
    """And not the task (S1)."""
    waiting = place.jobq.start(place.spec, "push", "--wait", "--json", "-c", "true")
    assert waiting.stdout is not None
    id_ = place.until_line(waiting.stdout)
    waiting.send_signal(signal.SIGINT)
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=10)
    assert waiting.returncode == 128 + signal.SIGINT, err
    assert b"Traceback" not in err
    place.work()
    assert place.record(id_).state is TaskState.SUCCEEDED


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)  # as above
def test_progress_comes_soon(place: Place) -> None:
    """Within some seconds, though a heartbeat is due each quarter of an hour only."""
    env = SHORT | {"JOBQ_VISIBILITY_TIMEOUT": "1h"}
    (id_,) = place.push(f"{JOBQ} progress 0.25; {JOBQ} progress 0.5 now; sleep 60")
    place.jobq.start(place.spec, "worker", env=env, stdout=-3, stderr=-3)
    place.until(id_, lambda record: record.beat is not None and record.beat.progress == 0.5)
    assert time.time() - (place.record(id_).leased_at or 0) < 20


def test_64_kib_are_bytes() -> None:
    """Of UTF-8, cut between characters."""
    for character in ("x", "é", "€", "😀", "\ud800"):
        text = character * MAX_OUTPUT_BYTES
        end = end_of(text, MAX_OUTPUT_BYTES)
        size = len(end.encode("utf-8", "surrogatepass"))
        assert MAX_OUTPUT_BYTES - 4 < size <= MAX_OUTPUT_BYTES
        assert text.endswith(end)
        assert end_of(character * 10, 100) == character * 10
