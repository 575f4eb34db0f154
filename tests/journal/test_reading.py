"""What runs, where and how far; and the truth about workers that were killed."""

import re

import pytest

from jobq.journal.records import TaskState
from tests.cli.conftest import eventually

from .conftest import Place, beside, embedded

pytestmark = pytest.mark.check


@beside
def test_what_runs_is_seen(place: Place) -> None:
    (id_,) = place.push("echo started; sleep 60")
    worker = place.start_worker()
    place.until(id_, lambda record: record.beat is not None and record.beat.output)
    (shown,) = place("ps", "--json").objects
    assert (shown["id"], shown["state"], shown["attempt"]) == (id_, "running", 1)
    assert shown["worker"]
    assert 0 < shown["lease_left_s"] <= 2
    assert place("logs", id_).lines == ["started"]
    assert "sleep 60" in place("ps").out
    assert "running" in place("status", id_).out
    place.until(id_, lambda record: record.beat is not None and record.beat.rss_bytes)
    worker.terminate()
    worker.wait(20)
    assert place("ps").out == ""
    found = place("status", id_, "--json").objects[0]["attempts"]
    assert [(one["outcome"], one["then"]) for one in found] == [("preempted", "retry")]


@embedded
def test_a_killed_worker_leaves_the_truth(place: Place) -> None:
    """Not "running" for ever: expired when the lease is over, and a lost attempt once another has begun."""
    (id_,) = place.push("test $JOBQ_ATTEMPT = 2 || sleep 60")
    worker = place.start_worker()
    place.until(id_, lambda record: record.beat is not None)
    place.kill_worker(worker)
    assert place("status", id_, "--json").objects[0]["attempts"] == [], "nobody knows yet"
    record = place.until(id_, lambda record: record.state is TaskState.EXPIRED)
    assert record.lease_left is not None
    assert record.lease_left <= 0
    assert "over" in place("ps").out
    place.work()
    found = place("status", id_, "--json").objects[0]["attempts"]
    assert [(one["attempt"], one["outcome"], one["then"]) for one in found] == [
        (1, "lock_lost", "lost"),
        (2, "succeeded", "done"),
    ]
    assert found[0]["host"]
    assert "died" in found[0]["detail"]
    assert place.status(id_)["state"] == "succeeded"


def test_logs_follow_to_the_end(place: Place) -> None:
    (id_,) = place.push("echo one; sleep 1.2; echo two")
    place.start_worker()
    assert place("logs", "-f", id_).lines == ["one", "two"]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_local_file_shows_output_and_takes_a_cancel_long_before_a_heartbeat(place: Place) -> None:
    """Both would come with the first renewal otherwise, of a lease of an hour after 15 minutes."""
    (id_,) = place.push("echo one; while test ! -e more; do sleep 0.1; done; echo two; sleep 600")
    place.start_worker("--visibility-timeout", "1h")
    place.until(id_, lambda record: record.beat is not None and record.beat.output == "one\n")
    (place.jobq.folder / "more").touch()
    place.until(id_, lambda record: record.beat is not None and record.beat.output == "one\ntwo\n")
    assert place("cancel", id_, "--json").objects == [{"id": id_, "canceled": "stopping"}]
    record = place.until(id_, lambda record: record.state is TaskState.CANCELED)
    assert record.last is not None
    assert record.last.outcome == "canceled"


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_logs_say_when_the_first_output_will_be_there(place: Place) -> None:
    """The first heartbeat of a lease of 40 s comes after 10 s; until then nothing is known of what it prints."""
    jobq, (id_,) = place.jobq, place.push("echo hidden; touch begun; sleep 60")
    jobq.start(place.spec, "worker", "--visibility-timeout", "40s", stdout=-3, stderr=-3)
    eventually((jobq.folder / "begun").exists)
    shown = jobq(place.spec, "logs", id_)
    assert shown.out == ""
    found = re.search(r"what it prints comes with its first heartbeat, in about (\d+\.?\d*)s; --follow", shown.err)
    assert found is not None, shown.err
    assert 0 < float(found[1]) <= 10


def test_whole_outputs_in_a_folder(place: Place) -> None:
    """More than the journal keeps, each attempt its own, and followed at once."""
    (id_,) = place.push("seq 20000; echo end >&2; test $JOBQ_ATTEMPT = 2", more=("--num-retries", "1"))
    place.start_worker("--log-dir", "logs")
    folder = place.jobq.folder / "logs"
    shown = place("logs", id_, "-f", "--log-dir", "logs").lines
    assert shown[:2] == ["1", "2"]
    assert len(shown) in (20001, 40002)
    assert sorted(path.name for path in folder.glob("*/*")) == [f"{id_}.1.log", f"{id_}.2.log"]
    place.until(id_, lambda record: record.state is TaskState.SUCCEEDED)
    assert place("logs", id_, "--attempt", "1", env={"JOBQ_LOG_DIR": "logs"}).lines[0] == "1"
    assert len(place("logs", id_).out) <= 64 * 1024
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("*/*"))


@embedded
def test_an_id_that_names_nothing(place: Place) -> None:
    place.push("true")
    for command in ("status", "logs"):
        assert place(command, "no-such-id", "--json", code=4).error["ids"] == ["no-such-id"]


@beside
def test_the_rate_counts_from_the_first_end(place: Place) -> None:
    """Work that has just begun is not slow; over the hour it would be 3 in 3,600 s."""
    ids = place.push("true", "true", "true")
    place.push("true", more=("--delay", "1h"))
    place.work()
    for id_ in ids:
        place.until(id_, lambda record: record.state is TaskState.SUCCEEDED)
    stats = place("stats", "--json").objects[0]
    assert stats["attempts_per_s"] >= 3 / 30
    assert 0 < stats["left_s"] <= 30
    assert "/s, about " in place("stats").out
    assert "/s, about " in place("top", "--once").out
    shown = place("ps").err
    assert "nothing runs" in shown
    assert ("1 waiting" in shown, "/s, about " in shown) == (not place.is_azure, not place.is_azure)
