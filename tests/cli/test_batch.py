"""`push --batch`, `batch` and `results`, as a user has them: a sweep, watched, run again in part, and made a table."""

import csv
import json
import signal
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.conftest import Jobq


def test_a_sweep_from_its_push_to_its_table(jobq: Jobq) -> None:
    """Each tenth run fails once: `retry` runs those again, the end is told for each round, and a table holds all."""
    jobq("demo", "create")
    command = """test $((PARAM_seed % 10)) -ne 0 -o -e again; echo "{\\"loss\\": $PARAM_lr}" > "$JOBQ_RESULT_FILE\""""
    script = f"set -e; {command}"
    pushed = jobq(
        "demo", "push", "--batch", "s7", "--then", "echo merged >> merged", "--cwd", ".", "--num-retries", "0",
        "--grid", "lr=0.1,0.01", "--grid", "seed=1..20", "-c", script,
    )  # fmt: skip
    assert "batch s7 is sealed with 40 tasks" in pushed.err
    jobq("demo", "worker", "-n", "4")
    assert jobq("demo", "batch", "wait", "s7", code=1).lines[-2].endswith("40: 36 succeeded, 4 dead")
    (jobq.folder / "again").touch()
    assert jobq("demo", "batch", "retry", "s7").out == "retried 4 tasks of batch s7\n"
    (shown,) = jobq("demo", "batch", "show", "s7", "--json").objects
    assert (shown["state"], shown["round"], shown["counts"]["ready"], shown["total"]) == ("sealed", 2, 4, 40)
    jobq("demo", "worker", "-n", "4")
    jobq("demo", "batch", "wait", "s7")
    assert (jobq.folder / "merged").read_text() == "merged\nmerged\n"
    assert jobq("demo", "results", "--batch", "s7", "-o", "s7.csv").err == "wrote 40 rows to s7.csv\n"
    table = pd.read_csv(jobq.folder / "s7.csv")
    assert len(table) == 40
    assert table["param.lr"].equals(table["value.loss"])
    assert sorted(table["param.seed"]) == sorted([*range(1, 21)] * 2)
    assert table.groupby("attempts").size().to_dict() == {1: 36, 2: 4}
    jobq("demo", "results", "--batch", "s7", "-o", "s7.parquet")
    other = pd.read_parquet(jobq.folder / "s7.parquet")
    assert other["value.loss"].dtype == float
    assert other["param.seed"].dtype == other["exit_code"].dtype == int
    assert other["id"].tolist() == table["id"].tolist()
    (cost,) = [each["cost"] for each in jobq("demo", "batch", "show", "s7", "--cost", "--json").objects]
    assert cost["attempts"] == 44
    assert 0 < cost["cpu_seconds"] <= cost["seconds"] * 8
    assert jobq("demo", "batch", "show", "s7", "--cost").lines[-1].endswith("of CPU, in 44 attempts")
    failed = jobq("demo", "results", "--batch", "s7", "--all-attempts", "--where", "outcome=failed")
    assert {each["exit_code"] for each in failed.objects} == {1}
    assert len(failed.objects) == 4


def test_the_same_push_again_changes_nothing_and_other_tasks_are_refused(jobq: Jobq) -> None:
    (jobq.folder / "tasks.txt").write_text("echo 1\necho 2\n")
    for push in (("--batch", "f", "tasks.txt"), ("--batch", "c", "-c", "echo 1", "-c", "echo 2")):
        jobq("demo", "push", *push)
        again = jobq("demo", "push", *push)
        assert f"batch {push[1]} was sealed before with 2 tasks" in again.err
    assert sorted(map(str, jobq.commands())) == sorted(["echo 1", "echo 2"] * 2)
    refused = jobq("demo", "push", "--batch", "c", "-c", "echo 3", code=1)
    assert "take another name" in refused.err
    refused = jobq("demo", "push", "--batch", "c", "--open", "-c", "echo 3", code=1)
    assert "batch 'c' is sealed, so none of these tasks was added; take another name" in refused.err
    assert len(jobq.commands()) == 4


def test_tasks_of_a_specification_are_of_the_batch(jobq: Jobq) -> None:
    """Also those that it makes by itself, which no option has a say in."""
    listed = "import jobq\ndef work():\n    yield 'echo 1'\n    yield jobq.Task.new(command='echo 2')\n"
    (jobq.folder / "listing.py").write_text(listed)
    pushed = jobq("demo", "push", "--batch", "s7", "--spec", "listing:work")
    assert "batch s7 is sealed with 2 tasks" in pushed.err


def test_a_batch_whose_name_is_free_again_is_walked_from_the_beginning(jobq: Jobq) -> None:
    """The cursor of the former one would say that all is queued, and its end would be told at once."""
    (jobq.folder / "tasks.txt").write_text("echo 1\necho 2\n")
    for source in (("tasks.txt",), ("--grid", "n=1..2", "--", "true", "{n}")):
        for _ in range(2):
            pushed = jobq("demo", "push", "--batch", "s7", "--then", "true", *source)
            assert "batch s7 is sealed with 2 tasks" in pushed.err
            jobq("demo", "delete", "--force")


def test_what_is_to_be_run_at_its_end_is_not_said_too_late(jobq: Jobq) -> None:
    jobq("demo", "push", "--batch", "s7", "--then", "echo 1", "-c", "true")
    jobq("demo", "push", "--batch", "s7", "--then", "echo 1", "-c", "true")
    late = jobq("demo", "push", "--batch", "s7", "--then", "echo 2", "-c", "true", code=1)
    assert "what is to be run at its end (--then) has to be said before" in late.err


def test_several_pushes_to_one_that_stays_open(jobq: Jobq) -> None:
    for number in range(2):
        pushed = jobq("demo", "push", "--batch", "s7", "--open", "-", stdin=f"echo {number}\n")
        assert "batch s7 stays open: push more to it, then `jobq demo batch seal s7`" in pushed.err
    jobq("demo", "worker")
    assert jobq("demo", "batch", "wait", "s7", "--timeout", "0.1s", code=75).lines[1].endswith("open, round 1")
    assert jobq("demo", "batch", "seal", "s7").lines[1].endswith("finished, round 1")
    assert jobq("demo", "batch", "wait", "s7", "--json").objects[0]["counts"]["succeeded"] == 2
    assert jobq("demo", "batch", "reopen", "s7").lines[1].endswith("open, round 2")


def test_a_canceled_one_has_finished_when_what_runs_has_ended(jobq: Jobq) -> None:
    jobq("demo", "push", "--batch", "s7", *["-c", "echo begun; sleep 60"] * 3)
    jobq("demo", "push", "-c", "echo other")
    worker = jobq.start("demo", "worker", "--json", "--stop-grace", "1s")
    assert worker.stdout is not None
    assert any(json.loads(line)["event"] == "task.output" for line in worker.stdout)
    assert "terminal" in jobq("demo", "batch", "cancel", "s7", code=2).err
    canceled = jobq("demo", "batch", "cancel", "s7", "--yes", "--json").objects[0]
    assert canceled["counts"]["canceled"] == 2
    assert jobq("demo", "batch", "wait", "s7", "--json", code=1).objects[0]["counts"]["canceled"] == 3
    rest = worker.stdout.read().decode()
    assert "other" in rest
    assert worker.wait() == 0


def test_a_batch_that_is_not_there(jobq: Jobq) -> None:
    jobq("demo", "create")
    for line in (("show",), ("wait",), ("retry",), ("seal",), ("reopen",), ("cancel", "--yes")):
        refused = jobq("demo", "batch", line[0], "s7", *line[1:], code=4)
        assert "there is no batch 's7' in this queue; `jobq demo push --batch s7` begins one" in refused.err
    jobq("demo", "results", "--batch", "s7", code=4)
    assert jobq("demo", "batch", "list").out == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("--open", "-c", "true"), "--open and --then are about a batch: name it with --batch NAME"),
        (("--then", "true", "-c", "true"), "--open and --then are about a batch"),
        (("--batch", "a:b", "-c", "true"), "is no name of 1 to 64 letters"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_done(
    jobq: Jobq, line: tuple[str, ...], said: str
) -> None:
    assert said in jobq("demo", "push", *line, code=2).err
    jobq("demo", "size", code=4)


def test_a_queue_that_knows_nothing_of_its_tasks_refuses_before_anything_is_queued(jobq: Jobq) -> None:
    azurite = {"JOBQ_QUEUE": "nobody/jobs", "AZURE_STORAGE_KEY": "a2V5"}
    refused = jobq("push", "--batch", "s7", "-c", "true", env=azurite, code=3)
    assert "keeps no batches and no params: nothing is known of a task" in refused.err
    assert "where JOBQ_JOURNAL=tables is set for whoever pushes and works" in refused.err


def test_results_are_whole_or_not_there(jobq: Jobq) -> None:
    jobq("demo", "push", "--batch", "s7", "-c", "true")
    assert "written as .csv, .jsonl or .parquet" in jobq("demo", "results", "--batch", "s7", "-o", "s7.xls", code=3).err
    assert "does not exist" in jobq("demo", "results", "--batch", "s7", "-o", "no/s7.csv", code=3).err
    (jobq.folder / "folder.csv").mkdir()
    assert "that is a folder" in jobq("demo", "results", "--batch", "s7", "-o", "folder.csv", code=3).err
    full = jobq("demo", "results", "--batch", "s7", "-o", "/dev/full/s7.csv", code=3)
    assert "does not exist" in full.err
    folder = jobq.folder / "kept"
    folder.mkdir()
    before = folder / "s7.csv"
    before.write_text("former")
    limited = jobq.start("demo", "results", "--batch", "s7", "-o", str(before))
    limited.send_signal(signal.SIGSTOP)
    limited.kill()
    limited.wait()
    assert before.read_text() == "former"
    said = jobq("demo", "results", "--batch", "s7", "-o", str(before)).err
    assert "batch s7 has not finished: 1 of its tasks are left" in said
    assert [row["state"] for row in csv.DictReader(before.read_text().splitlines())] == ["ready"]
    assert [each.name for each in folder.iterdir()] == ["s7.csv"]


def test_a_value_of_any_shape_has_its_columns(jobq: Jobq, tmp_path: Path) -> None:
    values = ['{"a": {"b": 1, "c": [1, 2]}}', '{"a": {"b": 0.5}}', "17", '"text, with \\"quotes\\""', "true"]
    (jobq.folder / "values.jsonl").write_text("".join(json.dumps({"v": each}) + "\n" for each in values))
    script = """printf %s "$PARAM_v" > "$JOBQ_RESULT_FILE\""""
    jobq("demo", "push", "--batch", "s7", "--each", "values.jsonl", "-c", script)
    jobq("demo", "worker")
    for name in ("out.csv", "out.parquet"):
        jobq("demo", "results", "--batch", "s7", "-o", name)
    table = pd.read_parquet(tmp_path / "out.parquet")
    assert table["value.a.b"].tolist()[:2] == [1.0, 0.5]
    assert table["value.a.c"].tolist()[0] == "[1, 2]"
    assert table["value"].tolist()[2:] == ["17", 'text, with "quotes"', "true"]
    assert pd.read_csv(tmp_path / "out.csv")["value"].tolist()[2:] == table["value"].tolist()[2:]
    columns = jobq("demo", "results", "--batch", "s7", "--columns", "id,value.a.b,nothing").objects
    assert columns[0] == {"id": "s7.0", "value.a.b": 1, "nothing": None}


def test_a_long_command_is_shown_by_its_beginning(jobq: Jobq) -> None:
    """What its tasks run is kept with the batch for people; a command may be longer than they read."""
    jobq("demo", "push", "--batch", "long", "-c", f"echo {'x' * 100_000}")
    (shown,) = jobq("demo", "batch", "show", "long", "--json").objects
    assert (len(shown["template"]), shown["template"][:6], shown["template"][-4:]) == (4096, "echo x", "x...")
    assert jobq.commands() == [f"echo {'x' * 100_000}"]
