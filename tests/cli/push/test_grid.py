"""`push --grid` and `push --each`: a task for each point, in order, and nothing queued of what is refused."""

import csv
import json
import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest

from jobq.errors import QueueNotFound
from jobq.task import Task
from tests.cli.conftest import Jobq
from tests.cli.push.shells import HOSTILE, said_by

ARGV = ("--", "train", "--lr={lr}", "--seed", "{seed}", "out/{index}")


def argvs(jobq: Jobq) -> list[tuple[str, ...] | None]:
    return [task.argv for task in jobq.waiting()]


def is_untouched(jobq: Jobq) -> bool:
    async def look(backend: object) -> bool:
        try:
            await backend.stats()  # type: ignore[attr-defined] # a backend
        except QueueNotFound:
            return True
        return False

    return not jobq.file.exists() or jobq.inside(look)


def test_points_are_queued_in_order_and_as_they_are_written(jobq: Jobq) -> None:
    result = jobq("demo", "push", "--grid", "lr=0.10,1e-5", "--grid", "seed=08..10", "--priority", "2", *ARGV)
    assert "queued 6 tasks on demo" in result.err
    points = list(product(("0.10", "1e-5"), ("08", "09", "10")))
    assert argvs(jobq) == [
        ("train", f"--lr={lr}", "--seed", seed, f"out/{index}") for index, (lr, seed) in enumerate(points)
    ]
    tasks = jobq.waiting()
    assert {task.priority for task in tasks} == {2}
    assert {len(task.id) for task in tasks} == {36}, "plain ids without --resume"


def test_a_command_for_the_shell_finds_variables(jobq: Jobq) -> None:
    (jobq.folder / "runs.csv").write_text('lr,note\n0.1,"a ""b"", c"\n0.2,\n')
    command = 'printf "%s|" "$PARAM_lr" "$PARAM_note" "$PARAM_seed" "$PARAM_index"'
    jobq("demo", "push", "--grid", "seed=1,2", "--each", "runs.csv", "-e", "OWN=1", "-c", command)
    tasks = jobq.waiting()
    assert [said_by(task) for task in tasks] == [
        '0.1|a "b", c|1|0|', '0.1|a "b", c|2|1|', "0.2||1|2|", "0.2||2|3|",
    ]  # fmt: skip
    assert {task.command for task in tasks} == {command}
    assert tasks[3].env == {
        "OWN": "1", "PARAM_lr": "0.2", "PARAM_note": "", "PARAM_seed": "2", "PARAM_index": "3",
    }  # fmt: skip


def test_the_queue_says_the_ids_and_waits_as_for_any_push(jobq: Jobq) -> None:
    push = ("demo", "push", "--grid", "x=1..3")
    result = jobq(*push, "--json", "-c", "true")
    assert [line["id"] for line in result.objects] == [task.id for task in jobq.waiting()]
    jobq(*push, "--dedup-by-content", "--", "echo", "{x}")
    jobq(*push, "--dedup-by-content", "--", "echo", "{x}")
    assert len(jobq.waiting()) == 6
    result = jobq("demo", "push", "--resume", "n", "--grid", "x=1..12", "--ids", "-c", "true")
    assert result.lines == [f"n.{number:02d}" for number in range(12)]


def test_a_dry_run_shows_the_count_and_the_first_three(jobq: Jobq) -> None:
    secret = ("-e", "TOKEN=secret")
    grid = ("demo", "push", "--dry-run", "--grid", "lr=it's,b", "--grid", "seed=1..5000000", *secret)
    result = jobq(*grid, *ARGV)
    assert result.lines == [f"""train '--lr=it'"'"'s' --seed {seed} out/{seed - 1}""" for seed in (1, 2, 3)]
    assert "tasks: 10000000, in this order; nothing is queued" in result.err
    result = jobq(*grid, "-c", "train $PARAM_seed")
    assert result.lines[0] == """export PARAM_lr='it'"'"'s' PARAM_seed=1 PARAM_index=0; train $PARAM_seed"""
    assert "secret" not in result.out + result.err
    assert "PARAM_seed=1 " in jobq(*grid, "-e", "PARAM_seed=9", "-c", "train").lines[0], "a value goes before --env"
    (shown,) = jobq(*grid, "--json", "--resume", "n", *ARGV).objects
    assert shown["count"] == 10_000_000
    assert shown["first"][2] == {"id": "n.0000002", "argv": ["train", "--lr=it's", "--seed", "3", "out/2"]}
    (shown,) = jobq(*grid, "--json", "-c", "train").objects
    assert shown["first"][0]["env"] == {"PARAM_lr": "it's", "PARAM_seed": "1", "PARAM_index": "0"}
    assert is_untouched(jobq)


def test_what_is_refused_is_refused_before_anything_is_queued(jobq: Jobq) -> None:
    (jobq.folder / "f.csv").write_text("lr,seed\n" + "0.1,1\n" * 700 + "0.2\n")
    (jobq.folder / "g.jsonl").write_text('{"lr": 1}\n{"seed": 2}\n')
    (jobq.folder / "empty.csv").write_text("lr\n")
    push = ("demo", "push")
    grid = (*push, "--grid", "lr=1,2")
    for arguments, code, text in (
        ((*grid,), 2, "are for one command"),
        ((*grid, "-c", "a", "-c", "b"), 2, "are for one command"),
        ((*grid, "-c", "a", "--", "b", "{lr}"), 2, "one place"),
        ((*grid, "f.csv"), 2, "a FILE, --call, --spec and --id do not go with them"),
        ((*grid, "--id", "x", "-c", "a"), 2, "a FILE, --call, --spec and --id"),
        ((*grid, "--call", "m:f"), 2, "a FILE, --call, --spec and --id"),
        ((*grid, "--"), 2, "no program after"),
        ((*grid, "--", "train", "{ls}"), 2, "no field {ls}; there are: index, lr"),
        ((*grid, "--", "train"), 2, "has no field, so all tasks would be the same"),
        ((*grid, "-c", "train {lr}"), 2, 'write "$PARAM_lr" there'),
        ((*grid, "-c", 'train "$PARAM_ls"'), 2, "no variable $PARAM_ls; there are: $PARAM_index, $PARAM_lr"),
        ((*grid, "--", "sh", "-c", "train {lr}"), 2, "word with white space"),
        ((*grid, "--", "ssh", "host", "train {lr}"), 2, "{lr} stands in a word with white space, 'train {lr}'"),
        ((*push, "--grid", "lr=1,2,-1", "--", "train", "{lr}"), 2, "--grid lr=-1: lr: its value begins with a dash"),
        (
            (*push, "--grid", "lr=1", "--grid", "s=3..-3", "--", "a", "{lr}{s}", "{s}"),
            2,
            "--grid s=-3: s: its value begins",
        ),
        ((*push, "--each", "f.csv", "-c", "a"), 2, "f.csv:702: 1 values, and the header names 2 columns"),
        ((*push, "--each", "f.csv", "--grid", "lr=1", "-c", "a"), 2, "f.csv:1: lr is a --grid's, too"),
        (
            (*push, "--each", "g.jsonl", "--", "a", "{lr}"),
            2,
            "g.jsonl:2: there is no field {lr}; there are: index, seed",
        ),
        ((*push, "--each", "missing.csv", "-c", "a"), 2, "cannot read missing.csv: No such file"),
        ((*push, "--each", "-", "-c", "a"), 2, "ends with .csv, .tsv or .jsonl"),
        ((*push, "--dry-run", "-c", "a"), 2, "--dry-run goes with --spec, --grid and --each"),
        ((*grid, "--accept-changes", "-c", "a"), 2, "--accept-changes goes with --resume"),
        ((*grid, "--accept-changes", "--resume", "n", "-c", "a"), 2, "is about a FILE"),
        ((*grid, "--resume", "n", "--delay", "1s", "-c", "a"), 2, "--delay counts from"),
        ((*grid, "--resume", "n", "--dedup-by-content", "-c", "a"), 2, "leave out --dedup-by-content"),
        ((*push, "--each", "empty.csv", "-c", "a"), 0, "there are no records, so nothing is queued"),
    ):
        assert text in jobq(*arguments, code=code).err, arguments
    assert is_untouched(jobq)


@pytest.mark.parametrize(
    ("value", "text"),
    [("-x", "begins with a dash"), ("x" * 131_072, "has 131073 bytes")],
)
def test_a_value_that_no_word_can_be_keeps_its_page_from_being_queued(jobq: Jobq, value: str, text: str) -> None:
    lines = [json.dumps({"x": str(number)}) for number in range(1200)]
    lines[700] = json.dumps({"x": value})
    (jobq.folder / "f.jsonl").write_text("\n".join(lines) + "\n")
    push = ("demo", "push", "--each", "f.jsonl", "--resume", "n", "--", "echo", "{x}")
    refused = jobq(*push, code=2)
    assert "f.jsonl:701: x: its value" in refused.err
    assert text in refused.err
    assert "mend it and go on with --accept-changes" in refused.err
    assert len(jobq.waiting()) == 500
    lines[700] = '{"x": "good"}'
    (jobq.folder / "f.jsonl").write_text("\n".join(lines) + "\n")
    assert "begun with another file" in jobq(*push, code=2).err
    jobq(*push[:4], "--accept-changes", *push[4:])
    assert argvs(jobq) == [("echo", json.loads(line)["x"]) for line in lines]
    assert [task.id for task in jobq.waiting()][700] == "n.0700"


def test_without_a_name_it_says_what_is_queued(jobq: Jobq) -> None:
    (jobq.folder / "f.csv").write_text("x\n" + "1\n" * 700 + "-1\n")
    refused = jobq("demo", "push", "--each", "f.csv", "--", "echo", "{x}", code=2)
    assert "f.csv:702: x: its value begins with a dash" in refused.err
    assert "queued 500 tasks on demo" in refused.err
    jobq("two", "push", "--each", "f.csv", "--", "echo", "--", "{x}")


ANY_CHARACTER = (*range(1, 0xD800), *range(0xE000, 0x2FFFF))  # but NUL, and what UTF-8 cannot hold


def hostile(dice: random.Random, count: int) -> Iterator[str]:
    """Yield values that would like to be code, or something else than they are."""
    parts = [
        *HOSTILE,
        "-",
        "--",
        "-n",
        "$PARAM_v0",
        "a[$(touch pwned)]",
        "\r\n",
        "\x7f",
        "日本",
        "\U0001f600",
        ",",
        '""',
    ]
    for _ in range(count):
        if dice.random() < 0.2:
            yield "".join(map(chr, dice.choices(ANY_CHARACTER, k=5)))
        else:
            yield "".join(dice.choices(parts, k=dice.randint(1, 5)))


def written(folder: Path, rows: Sequence[Sequence[str]]) -> None:
    names = [f"v{number}" for number in range(len(rows[0]))]
    for suffix, delimiter in (("csv", ","), ("tsv", "\t")):
        with (folder / f"f.{suffix}").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([names, *rows])
    with (folder / "f.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


@pytest.mark.parametrize("count", [2_000, pytest.param(200_000, marks=[pytest.mark.night, pytest.mark.timeout(1800)])])
def test_a2_hostile_values_come_out_of_a_shell_as_they_went_in(jobq: Jobq, count: int) -> None:
    """From a file of each kind to the process, on dash and bash, and as words without a shell."""
    at_once = 40  # values of one task
    values = list(hostile(random.Random(count), count))
    rows = [values[start : start + at_once] for start in range(0, count, at_once)]
    written(jobq.folder, rows)
    names = [f"v{number}" for number in range(at_once)]
    shell = "printf '%s\\0' " + " ".join(f'"$PARAM_{name}"' for name in names)
    words = ("printf", "--", "%s\\0", *(f"{{{name}}}" for name in names))
    jobq("csv", "push", "--each", "f.csv", "-c", shell)
    jobq("tsv", "push", "--each", "f.tsv", "-c", shell)
    jobq("jsonl", "push", "--each", "f.jsonl", "--", *words)
    for queue, shells in (("csv", ["dash", "bash"]), ("tsv", ["dash"]), ("jsonl", [""])):
        tasks = jobq.inside(_all_tasks, queue)
        assert len(tasks) == len(rows)
        for name in shells:
            for task, row in zip(tasks, rows, strict=True):
                assert said_by(task, name, jobq.folder).split("\0")[:-1] == row
    assert not (jobq.folder / "pwned").exists()


async def _all_tasks(backend: object) -> list[Task]:
    found = await backend.peek(1_000_000)  # type: ignore[attr-defined] # a backend
    return [Task.decode(one.body) for one in found]
