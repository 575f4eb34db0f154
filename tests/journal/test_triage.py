"""Dead letters in groups: found by what they have in common, and put back by it, as often as it takes."""

import json

import pytest

from jobq.journal.dead_grouping import host_in
from jobq.journal.error_grouping import error_of, exit_of, folded
from jobq.journal.records import Attempt

from .conftest import Place, embedded

pytestmark = pytest.mark.check


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 17", "KeyError: 4"),
        ("cannot open /data/run-7/x.csv: errno 2", "cannot open /tmp/y: errno 13"),
        ("task 01a1fe07-5953-7359-9cd5-f423114d42f8 gone", "task 01a1fe07-0000-7359-9cd5-000000000000 gone"),
        ("at 0x7f00deadbeef after 1.5e-3 s", "at 0x1 after 20 s"),
    ],
)
def test_what_varies_is_folded(one: str, other: str) -> None:
    assert folded(one) == folded(other)
    assert folded("ValueError: bad shape") != folded("ValueError: bad size")


def test_which_digits_they_are_decides_only_what_is_an_id() -> None:
    assert folded("at 0x1f, not 1x1f") == "at <id>, not <n>x<n>f"
    assert folded("step 123 of 987, abc12345") == folded("step 456 of 210, def67890") == "step <n> of <n>, <id>"


@pytest.mark.parametrize(
    ("attempt", "host"),
    [
        (Attempt(attempt=1, outcome="failed", then="dead", ended=1.0, host="node-7", value={"host": "no"}), "node-7"),
        (Attempt(attempt=1, outcome="failed", then="dead", ended=1.0, value={"host": "no"}), ""),
        (Attempt(attempt=1, outcome="failed", then="dead", ended=1.0, detail='"host": "no"'), ""),
        (Attempt(attempt=1, outcome="failed", then="dead", ended=1.0, host='n\\"ö', detail='"host": "no"'), 'n\\"ö'),
    ],
)
def test_the_host_of_an_attempt_is_told_from_what_a_task_says(attempt: Attempt, host: str) -> None:
    assert host_in(attempt.encode()) == host
    assert host_in(json.dumps(json.loads(attempt.encode()), separators=(",", ":"))) == host  # by another writer


def test_what_a_description_tells() -> None:
    told = "failed 4 times; last: exit code 3\nlast output:\nTraceback\n  File x\nKeyError: 17\n\n"
    assert (exit_of(told), error_of(told)) == ("3", "KeyError: <n>")
    assert exit_of("crashed 4 times; last: ended by signal 11") == "signal 11"
    assert error_of("crashed 4 times; last: ended by signal 11") == "crashed <n> times; last: ended by signal <n>"
    assert len(error_of("x\nlast output:\n" + "y" * 10_000)) <= 160


@embedded
def test_one_group_is_put_back(place: Place) -> None:
    commands = [f"echo 'KeyError: {n}'; test -e mended || exit 3" for n in range(3)] + ["echo 'disk full'; exit 5"]
    ids = place.push(*commands, more=("--num-retries", "0"))
    place.work()
    assert "cannot group by" in place("dead", "list", "--group-by", "colour", code=3).err
    groups = place("dead", "list", "--group-by", "exit,error,host", "--json").objects
    assert [(group["count"], group["exit"], group["error"]) for group in groups] == [
        (3, "3", "KeyError: <n>"),
        (1, "5", "disk full"),
    ]
    assert groups[0]["host"]
    assert groups[0]["group"] in place("dead", "list", "--group-by", "exit,error,host").out
    (place.jobq.folder / "mended").touch()
    put_back = place("dead", "retry", "--group", groups[0]["group"], "--json").objects
    assert sorted(one["id"] for one in put_back) == sorted(ids[:3])
    assert place("dead", "retry", "--group", groups[0]["group"], "--json").objects == [], "it may be run again"
    place.work()
    assert {place.status(id_)["state"] for id_ in ids[:3]} == {"succeeded"}
    assert "purged 1 " in place("dead", "purge", "--where", "exit=5", "--where", "error=disk*").out
    assert place("dead", "list").out == ""
