"""`push --grid --resume NAME`: killed anywhere and run again, each point is queued once (S1, S8, S9)."""

import contextlib
import random
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq
from tests.cli.push.test_resume import SHORT, count_in


@pytest.fixture(autouse=True)
def short(jobq: Jobq) -> None:
    jobq.environment |= SHORT


def ids_and_words(file: Path) -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as database:
        return list(database.execute("SELECT id, json_extract(body, '$.argv[1]') FROM task ORDER BY seq"))


def killed_and_run_again(jobq: Jobq, push: tuple[str, ...], kills: int, seconds: float) -> None:
    dice = random.Random(kills)
    for _ in range(kills):
        process = jobq.start(*push, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began = count_in(jobq.file)
        give_up = time.monotonic() + seconds
        # Once it has moved on, at any moment: in a push, between it and the save, in the save.
        while process.poll() is None and count_in(jobq.file) == began and time.monotonic() < give_up:
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.05))
        process.kill()
        assert process.wait() == -9, "it was done before it was killed; there are too few points"
    last = jobq.start(*push, stderr=subprocess.DEVNULL, env={"JOBQ_LEASE_TTL": "20s"})  # nobody waits for its end
    assert last.wait(1500) == 0


@pytest.mark.night("kills anywhere in 30,000 points: 18 s")
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    ("count", "kills", "seconds"),
    [
        (30_000, 3, 20),
        pytest.param(999_900, 20, 60, marks=[pytest.mark.night, pytest.mark.timeout(1800)]),
    ],
)
def test_killed_anywhere_each_point_is_queued_once(
    jobq: Jobq, each: bool, count: int, kills: int, seconds: float
) -> None:
    """With a file also within a record, of whose points a page has only some."""
    if each:
        (jobq.folder / "f.csv").write_text("a\n" + "".join(f"{number}\n" for number in range(count // 300)))
        points = ("--each", "f.csv", "--grid", "b=1..300")
    else:
        points = ("--grid", f"a=0..{count // 300 - 1}", "--grid", "b=1..300")
    push = ("demo", "push", "--resume", "s7", *points, "--", "echo", "{a}/{b}")
    killed_and_run_again(jobq, push, kills, seconds)
    width = len(str(count - 1))
    expected = [(f"s7.{index:0{width}d}", f"{index // 300}/{index % 300 + 1}") for index in range(count)]
    assert ids_and_words(jobq.file) == expected
    assert f"s7 is done: all {count} records were queued before" in jobq(*push).err
    assert count_in(jobq.file) == count


def test_another_sweep_under_the_same_name_is_refused(jobq: Jobq) -> None:
    file = jobq.folder / "f.csv"
    file.write_text("a\n1\n2\n")
    (jobq.folder / "lines").write_text("echo 1\n")
    (jobq.folder / "f.tsv").write_text("a\n1\n2\n")
    resume = ("demo", "push", "--resume", "n")
    each = ("--each", "f.csv", "--grid", "b=1,2")
    run = ("--", "echo", "{a}{b}")
    jobq(*resume, *each, *run)
    for other, what in (
        ((*each[:3], "b=1..2", *run), "another --grid"),
        ((*each[:3], "b=2,1", *run), "another --grid"),
        ((*each, "--", "echo", "{b}{a}"), "another command"),
        ((*each, "--priority", "1", *run), "another options"),
        (("--grid", "a=1,2", "--grid", "b=1,2", *run), "another --each and another --grid"),
        (("lines",), "another options"),
    ):
        assert f"push:n was begun with {what}" in jobq(*resume, *other, code=2).err
    script = ("--grid", "c=1,2", "-c", "./script")
    jobq("demo", "push", "--resume", "m", "--each", "f.csv", *script)
    assert "begun with another --each" in jobq("demo", "push", "--resume", "m", *script, code=2).err
    assert "begun with another --each" in jobq("demo", "push", "--resume", "m", "--each", "f.tsv", *script, code=2).err
    file.write_text("a\n1\n3\n")
    assert "begun with another file" in jobq(*resume, *each, *run, code=2).err
    file.write_text("a\n1\n2\n3\n")
    assert "another --each and another file" in jobq(*resume, *each, *run, code=2).err
    file.write_text("a\n1\n2\n")
    assert "n is done: all 4 records" in jobq(*resume, *each, *run).err
    file.rename(jobq.folder / "g.csv")
    assert "n is done" in jobq(*resume, "--each", "g.csv", *each[2:], *run).err, "a file is known by what it holds"
    assert count_in(jobq.file) == 8


@pytest.mark.slow("real processes, and leases of seconds")
def test_a_file_that_is_changed_while_it_is_read_is_refused(jobq: Jobq) -> None:
    """Rewritten between two pages: a mixture of both is not taken for either."""
    file = jobq.folder / "f.csv"
    file.write_text("a\n" + "1\n" * 40_000)
    process = jobq.start("demo", "push", "--each", "f.csv", "--", "echo", "{a}", stdout=subprocess.DEVNULL)
    give_up = time.monotonic() + 20
    while not count_in(jobq.file) and time.monotonic() < give_up:
        time.sleep(0.002)
    with file.open("r+") as opened:  # the same file, as long as before
        opened.write("a\n" + "2\n" * 40_000)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    assert process.wait() == 2
    assert "was changed while it was read" in said
