"""A batch in what looks at a queue: `ps`, `top`, `status`, dead letters, conditions, and how long it takes still."""

from datetime import timedelta

import pytest

from jobq.backend import Backend
from jobq.batches import Batch, batches_of
from jobq.cli.display.queue_watch import unfinished_batches
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import OutcomeKind, TaskResult

from .conftest import Place, embedded

pytestmark = [pytest.mark.check, embedded]

LEASE = timedelta(seconds=60)
NOW = timedelta(0)


async def _hold(backend: Backend) -> None:
    """Let the first of s7 be done, the second dead, the third run; and the one of no batch run."""
    held = {each.id: each for each in await backend.receive(4, LEASE, NOW)}
    await held["s7.0"].settle(Complete(TaskResult(outcome=OutcomeKind.SUCCEEDED)))
    await held["s7.1"].settle(MoveToDeadLetters("failures", "failed; last: exit code 3"))


@pytest.fixture
def held(place: Place) -> Place:
    place("push", "--priority", "9", "-c", "echo other")
    place("push", "--batch", "s7", *(word for number in range(5) for word in ("-c", f"echo {number}")))
    place.inside(_hold)
    return place


def test_what_runs_and_what_is_dead_is_shown_by_batch(held: Place) -> None:
    assert [each.get("batch") for each in held("ps", "--json").objects] == [None, "s7"]
    (running,) = held("ps", "--batch", "s7", "--json").objects
    assert (running["id"], running["batch"]) == ("s7.2", "s7")
    said = held("ps", "--batch", "s7").err
    assert said.startswith("batch s7: sealed, 2 of 5, 1 running, 1 dead")
    assert held("ps", "--batch", "none", code=4).out == ""
    assert "batch:        s7" in held("status", "s7.0").out
    assert held("status", "s7.4", "--json").objects[0]["batch"] == "s7"
    (letter,) = held("dead", "list", "--batch", "s7", "--json").objects
    assert (letter["id"], letter["batch"]) == ("s7.1", "s7")
    assert held("dead", "list", "--batch", "s7", "--group-by", "exit", "--json").objects[0]["example"] == "s7.1"
    assert "there is no batch 'none'" in held("dead", "list", "--batch", "none", code=4).err
    assert "batch:        s7" in held("dead", "show", "s7.1").out


def test_conditions_know_batches(held: Place) -> None:
    assert held("cancel", "--where", "batch=s8").out == "canceled 0 tasks that waited\n"
    assert held("cancel", "--where", "batch=s7", "--where", "state=ready").out == "canceled 2 tasks that waited\n"
    assert held("cancel", "--where", "batch=", "--json").objects[0]["canceled"] == "stopping", "what is of none"
    assert held("dead", "retry", "--where", "batch=s8").out == "retried 0 dead letters\n"
    assert held("dead", "retry", "--where", "batch=s?").out == "retried 1 dead letter\n"


def test_top_knows_batches(held: Place) -> None:
    for name in ("a", "b"):
        held("push", "--batch", name, "--open", "-c", "true")
    held("push", "--batch", "over", "-c", "true")
    held("batch", "cancel", "over", "--yes")
    shown = held("top").out
    assert "batch a: open, 0 of 1\nbatch b: open, 0 of 1\nbatch s7: sealed, 2 of 5, 1 running, 1 dead\n" in shown
    assert "over" not in shown
    assert [each["name"] for each in held("top", "--json").objects[0]["batches"]] == ["a", "b", "s7"]
    shown = held("top", "--once", "--batch", "s7").out
    assert "5: 1 succeeded, 1 dead, 2 ready, 1 running" in shown
    assert "echo 2" in shown
    assert "other" not in shown
    (found,) = held("top", "--batch", "s7", "--json").objects
    assert (found["batch"]["counts"]["ready"], [each["id"] for each in found["running"]]) == (2, ["s7.2"])
    assert "there is no batch 'none'" in held("top", "--batch", "none", code=4).err


def test_of_many_batches_top_shows_some(place: Place) -> None:
    for number in range(7):
        place("push", "--batch", f"b{number}", "--open", "-c", "true")

    async def look(backend: Backend) -> list[str]:
        return [each.name for each in await unfinished_batches(backend)]

    assert place.inside(look) == [f"b{number}" for number in range(6)], "one more than are shown"
    shown = place("top").out
    assert "batch b4: open" in shown
    assert "b5" not in shown
    assert "and more" in shown


def test_a_sealed_batch_says_about_how_long_it_takes_still(held: Place) -> None:
    async def told(backend: Backend) -> Batch:
        return await batches_of(backend).find("s7")

    found = held.inside(told)
    assert found.rate is not None
    shown = held("batch", "show", "s7").lines[-1]
    assert shown.startswith("left:       about "), shown
    (fields,) = held("batch", "show", "s7", "--json").objects
    assert 0 < fields["left_s"] == pytest.approx(3 / fields["rate"], abs=0.1)
    held("batch", "reopen", "s7")
    assert "about" not in held("batch", "show", "s7").out, "more may come"
    assert held("batch", "show", "s7", "--json").objects[0]["left_s"] is None


def test_an_open_batch_says_whether_anybody_pushes(place: Place) -> None:
    """By the lease under which a push of a file goes on; nothing is said of a push that has none."""
    (place.jobq.folder / "tasks.txt").write_text("echo 1\n")
    place("push", "--batch", "s7", "tasks.txt")
    assert place("batch", "show", "s7").lines[1] == "state:      sealed, round 1"
    place("batch", "reopen", "s7")
    assert place("batch", "show", "s7").lines[1] == "state:      open, round 1; nobody is pushing"
    assert place("batch", "show", "s7", "--json").objects[0]["pusher"] is None
    (name,) = (each["name"] for each in place("lease", "list", "--json").objects if each["name"].startswith("push:s7."))
    argv = ("lease", "run", name, "--", "sh", "-c", "echo begun; exec sleep 60")
    holder = place.jobq.start(place.spec, *argv, stdout=-1)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"begun\n"
    pusher = place("batch", "show", "s7", "--json").objects[0]["pusher"]
    assert pusher
    assert place("batch", "show", "s7").lines[1] == f"state:      open, round 1; {pusher} is pushing"
    place("push", "--batch", "s8", "--open", "-c", "true")
    assert place("batch", "show", "s8").lines[1] == "state:      open, round 1"


def test_the_lease_of_a_push_is_looked_for_where_it_was(place: Place) -> None:
    """JOBQ_LEASES names another queue for it."""
    (place.jobq.folder / "tasks.txt").write_text("echo 1\n")
    elsewhere = {"JOBQ_LEASES": "cursors"}
    place("push", "--batch", "s7", "tasks.txt", env=elsewhere)
    place("batch", "reopen", "s7")
    assert place("batch", "show", "s7", env=elsewhere).lines[1].endswith("; nobody is pushing")
    assert place("batch", "show", "s7").lines[1].endswith("open, round 1")


def test_without_a_journal_what_runs_of_a_batch_is_not_known(place: Place) -> None:
    place("push", "--batch", "s7", "-c", "true")
    shown = place("top", "--batch", "s7", env={"JOBQ_JOURNAL": "off"}).out
    assert "batch s7: sealed, 0 of 1" in shown
    assert "keeps no journal" in shown
    assert "nothing runs" not in shown
