"""Push, look, work, and what each command ends with."""

import json

import pytest

from tests.blackbox.support import Bench

pytestmark = pytest.mark.check

USAGE, CONFIGURATION, NOT_FOUND, UNREACHABLE = 2, 3, 4, 75


def test_tasks_come_from_options_a_file_and_standard_input(bench: Bench) -> None:
    (bench.work / "tasks").write_text("# a comment\n\necho file >> ran\n")
    bench.jobq("q", "push", "-c", "echo option >> ran", "-c", "echo second >> ran")
    bench.jobq("q", "push", "tasks")
    bench.jobq("q", "push", "-", text='echo stdin >> ran\n{"argv": ["sh", "-c", "echo object >> ran"]}\n')
    bench.jobq("q", "push", "--", "sh", "-c", 'echo "$1" >> ran', "sh", "two  words $HOME")
    assert bench.objects("q", "size") == [{"visible": 6, "leased": 0, "scheduled": 0, "dead": 0}]
    bench.jobq("q", "worker")
    assert bench.lines("ran") == ["option", "second", "file", "stdin", "object", "two  words $HOME"]
    assert bench.objects("q", "size") == [{"visible": 0, "leased": 0, "scheduled": 0, "dead": 0}]


def test_what_is_pushed_is_peeked_worked_and_kept(bench: Bench) -> None:
    first, second = bench.jobq("q", "push", "--ids", "-c", "echo said", "-c", "exit 3", "--num-retries", "0").split()
    peeked = bench.objects("q", "peek", "-n", "1")
    assert [(each["id"], each["deliveries"], each["task"]["command"]) for each in peeked] == [(first, 0, "echo said")]
    assert bench.objects("q", "status", first)[0]["state"] == "ready"
    bench.ends(bench.start("q", "worker"), 0)  # though a task was given up: nothing is left
    assert bench.lines("out") == ["said"]
    [done], [dead] = bench.objects("q", "status", first), bench.objects("q", "status", second)
    assert (done["state"], done["attempt"], done["last"]["exit_code"]) == ("succeeded", 1, 0)
    assert (dead["state"], dead["reason"], dead["last"]["exit_code"]) == ("dead", "failed", 3)
    assert bench.jobq("q", "logs", first) == "said\n"
    assert bench.objects("q", "logs", first) == [{"id": first, "attempt": 1, "output": "said\n"}]
    assert [each["outcome"] for each in bench.objects("q", "status", second)[0]["attempts"]] == ["failed"]


def test_an_id_is_queued_once_and_is_refused_for_another_task(bench: Bench) -> None:
    for _ in range(2):
        bench.jobq("q", "push", "--id", "one", "-c", "echo one >> ran")
    bench.jobq("q", "push", "--id", "one", "-c", "echo other >> ran", code=1)
    bench.jobq("q", "worker")
    bench.jobq("q", "push", "--id", "one", "-c", "echo one >> ran")  # known, also when it is done
    bench.jobq("q", "worker")
    assert bench.lines("ran") == ["one"]


def test_each_fault_has_its_exit_code(bench: Bench) -> None:
    bench.jobq("q", "create")
    bench.jobq("q", "nosuchcommand", code=USAGE)
    bench.jobq("q", "push", "--nosuchoption", "-c", "true", code=USAGE)
    bench.jobq("q", "worker", code=CONFIGURATION, JOBQ_BACKOFF="soon")
    bench.jobq("nosuchqueue", "size", code=NOT_FOUND)
    bench.jobq("q", "status", "nosuchid", code=NOT_FOUND)
    bench.jobq("q", "size", "--fail-if-empty", code=NOT_FOUND)
    bench.jobq("http://127.0.0.1:9/q", "size", code=UNREACHABLE)
    bench.jobq("q", "push", "-c", "true", "-c", "false", "--num-retries", "0")
    bench.jobq("q", "worker", "--max-tasks", "1")
    assert bench.objects("q", "size")[0]["visible"] == 1


def test_ten_tasks_that_fail_in_a_row_end_the_worker_with_1(bench: Bench) -> None:
    bench.jobq("q", "push", "-", text="echo ran >> ran; exit 1\n" * 12)
    bench.jobq("q", "worker", "--backoff", "10m", code=1)
    assert len(bench.lines("ran")) == 10


def test_an_error_is_an_object_with_json(bench: Bench) -> None:
    process = bench.start("nosuchqueue", "size", "--json")
    bench.ends(process, NOT_FOUND)
    [error] = [json.loads(line) for line in bench.lines("err")]
    assert error["exit_code"] == NOT_FOUND
    assert {"error", "message"} <= error.keys()
    assert bench.lines("out") == []
