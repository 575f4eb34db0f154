"""Ids in part, such as logs and the live view show: each command takes them, on each store that keeps a journal."""

import json

import pytest

from jobq.cli.display.event_format import short_id

from .conftest import Place, embedded

pytestmark = [pytest.mark.check, embedded]


def test_a_short_id_is_enough(place: Place) -> None:
    done, dead = place.push("echo hello", "echo oh; exit 3", more=("--num-retries", "0"))
    place.work()
    later, other = place.push("true", "true", more=("--delay", "1h"))
    assert place("logs", short_id(done)).lines == ["hello"]
    assert [one["id"] for one in place("status", short_id(done), "--json").objects] == [done]
    shown = place("dead", "show", short_id(dead)).out
    assert "attempt:      1 failed (dead): exit code 3; " in shown, "each failure is shown"
    assert "counters" not in shown, "which leave out the last one"
    (letter,) = place("dead", "show", short_id(dead), "--json").objects
    assert [(one["attempt"], one["outcome"], one["exit_code"]) for one in letter["attempts"]] == [(1, "failed", 3)]
    states = {one["id"]: one["state"] for one in place("status", "--json", *map(short_id, (done, dead, later))).objects}
    assert states == {done: "succeeded", dead: "dead", later: "scheduled"}
    canceled = place("cancel", short_id(later))
    assert "canceled 1 task" in canceled.out
    assert f"{short_id(later)} is {later}" in canceled.err, "what is changed is named"
    assert place.status(other)["state"] == "scheduled"
    assert "retried 1 dead letter" in place("dead", "retry", short_id(dead)).out
    place.work()
    assert "purged 1 dead letter" in place("dead", "purge", short_id(dead)).out


def test_a_part_of_several_ids_names_them(place: Place) -> None:
    lines = [json.dumps({"id": id_, "command": "exit 3"}) for id_ in ("train-1", "train-12", "eval")]
    (place.jobq.folder / "tasks.jsonl").write_text("\n".join(lines))
    place("push", "tasks.jsonl", "--num-retries", "0")
    several = "is a part of several ids: train-1, train-12"
    for line in ("status train-", "logs rain", "status in-1"):
        assert several in place(*line.split(), code=2).err, line
    assert place("status", "train-1", "--json").objects[0]["id"] == "train-1", "a whole id is no part"
    place.work()
    assert several in place("dead", "show", "train", code=2).err
    assert "purged 2 dead letters" in place("dead", "purge", "train-1", "eval").out
    for line in ("dead purge train-1", "dead retry train", "cancel rain-12"):  # whose task is gone, or never was
        place(*line.split(), code=4)
    assert [one["id"] for one in place("dead", "list", "--json").objects] == ["train-12"], (
        "a name is no part of another"
    )


def test_what_changes_takes_the_end_that_is_shown(place: Place) -> None:
    """S1: a name of four digits, whose task is gone, was a part of some other id, and that was purged."""
    (id_,) = place.push("true", more=("--delay", "1h"))
    for part in (id_[-7:], id_[:8], id_[9:18]):
        assert place("status", part, "--json").objects[0]["id"] == id_
        place("cancel", part, code=4)
    assert "canceled 1 task" in place("cancel", id_[-8:]).out


def test_what_is_no_part_is_not_known_as_ever(place: Place) -> None:
    (id_,) = place.push("true")
    for command in ("status", "logs", "cancel"):
        assert "no task with the id nothing is known" in place(command, "nothing", code=4).err
        assert "no task with the id" in place(command, id_[-3:], code=4).err, (
            "three characters are in some id by chance"
        )
    assert "no dead letter with the id nothing" in place("dead", "show", "nothing", code=4).err
