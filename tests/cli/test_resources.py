"""Asking for a part of a machine, and offering it, on the command line."""

import json

import pytest

from tests.cli.conftest import Jobq


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--cpus", "0", "0' is no number above 0"),
        ("--gpus", "0.5", "0.5 is no whole number of GPUs"),
        ("--mem", "12", "12 is no number of bytes of 1 MiB or more"),
        ("--mem", "much", "'much' is not a size"),
        ("--needs", "a b", "'a b' is no tag"),
    ],
)
def test_what_a_push_refuses(jobq: Jobq, option: str, value: str, said: str) -> None:
    assert said in jobq("demo", "push", option, value, "-c", "true", code=2).err.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-n", "0"), "0' is not a number from 1 to 4096"),
        (("-n", "all"), "'all' is not a number from 1 to 4096"),
        (("--cpus", "none"), "'none' is no number above 0"),
        (("--gpus", "0,all"), "'all' is no GPU"),
        (("--memory", "64"), "is too little for any program"),
        (("--tag", "a b"), "'a b' is no tag"),
    ],
)
def test_what_a_worker_refuses(jobq: Jobq, options: tuple[str, ...], said: str) -> None:
    jobq("demo", "create")
    assert said in jobq("demo", "worker", *options, code=2).err.replace("\n", " ")


def test_from_a_file_to_the_variables_of_a_task(jobq: Jobq) -> None:
    line = {"command": 'echo "$JOBQ_CPUS $JOBQ_GPUS $CUDA_VISIBLE_DEVICES"', "cpus": 1, "gpus": "1", "needs": ["eu"]}
    jobq("demo", "push", stdin=json.dumps(line) + "\n")
    shown = json.loads(jobq("demo", "peek", "--json").out)["task"]
    assert (shown["resources"], shown["needs"]) == ({"cpus": 1000, "gpus": 1000}, ["eu"])
    offer = {"JOBQ_OFFER_CPUS": "auto", "JOBQ_OFFER_GPUS": "1", "JOBQ_TAGS": "eu,fast"}
    assert "1 1 1" in jobq("demo", "worker", env=offer).out


def test_options_hold_for_the_lines_that_do_not_say_otherwise(jobq: Jobq) -> None:
    jobq("demo", "push", "--cpus", "2", "--needs", "eu", stdin='true\n{"command": "true", "cpus": 1}\n')
    tasks = [json.loads(line)["task"] for line in jobq("demo", "peek", "--json").out.splitlines()]
    assert [task["resources"]["cpus"] for task in tasks] == [2000, 1000]
    assert all(task["needs"] == ["eu"] for task in tasks)


def test_a_worker_that_can_run_nothing_ends_well_and_says_what_is_left(jobq: Jobq) -> None:
    jobq("demo", "push", "--gpus", "1", "-c", "true", "-c", "true")
    jobq("demo", "push", "--needs", "a100", "-c", "true")
    err = jobq("demo", "worker").err
    assert "3 tasks wait that this worker cannot run: gpus=1 (2), needs a100 (1)" in err
    assert json.loads(jobq("demo", "size", "--json").out)["visible"] == 3


def test_a_worker_gets_what_fits_from_behind_what_does_not(jobq: Jobq) -> None:
    """Nothing of what it cannot run is touched."""
    jobq("demo", "push", "--gpus", "1", stdin="true\n" * 50)
    jobq("demo", "push", "--cpus", "1", "-c", "echo small")
    jobq("demo", "push", "-c", "echo plain")
    shown = jobq("demo", "worker", "--cpus", "1")
    assert "small" in shown.out
    assert "plain" in shown.out
    assert "50 tasks wait that this worker cannot run: gpus=1 (50)" in shown.err
    tasks = [json.loads(line) for line in jobq("demo", "peek", "-n", "100", "--json").out.splitlines()]
    assert [task["deliveries"] for task in tasks] == [0] * 50


def test_what_waits_is_counted_by_what_it_asks_for(jobq: Jobq) -> None:
    jobq("demo", "push", "--gpus", "1", "--mem", "1G", "-c", "true", "-c", "true")
    jobq("demo", "push", "--needs", "a100", "-c", "true", "-c", "true", "-c", "true")
    jobq("demo", "push", "-c", "true")
    lines = [line.split(maxsplit=1) for line in jobq("demo", "size", "--by", "shape").out.splitlines()]
    wanted = [["3", "needs a100"], ["2", "gpus=1 mem=1 GiB"], ["1", "nothing"]]
    assert lines == [["visible", "asks for"], *wanted]
    found = [json.loads(line) for line in jobq("demo", "size", "--by", "shape", "--json").out.splitlines()]
    assert found[:2] == [{"visible": 3, "needs": ["a100"]}, {"visible": 2, "gpus": 1000, "mem": 1024**3}]


def test_what_auto_comes_to(jobq: Jobq) -> None:
    found = {row["setting"]: row for row in jobq("config", "--json").objects}
    assert int(found["offer_cpus"]["auto"]) >= 1
    assert found["offer_memory"]["auto"].endswith("iB")
    assert all(found[f"offer_{name}"]["why"] for name in ("cpus", "memory", "gpus"))
    hidden = jobq("config", env={"CUDA_VISIBLE_DEVICES": "2,3"}).out
    assert "auto: 2,3 (CUDA_VISIBLE_DEVICES is '2,3')" in hidden


def test_a_fanout_asks_as_a_push_does(jobq: Jobq) -> None:
    """And nothing is said of it where the queue tells tasks apart."""
    (jobq.folder / "lines").write_text("one\ntwo\n")
    asked = ("--cpus", "2", "--gpus", "1", "--mem", "1G", "--needs", "eu", "--needs", "a100")
    shown = jobq("demo", "fanout", "lines", "--lines", "lines", *asked, "--", "echo", "{line}")
    assert "whatever that asks for" not in shown.err
    tasks = [json.loads(line)["task"] for line in jobq("demo", "peek", "--json").out.splitlines()]
    wanted = ({"cpus": 2000, "gpus": 1000, "mem": 1024**3}, ["a100", "eu"])
    assert [(task["resources"], task["needs"]) for task in tasks] == [wanted] * 2
    assert "0' is no number above 0" in jobq("demo", "fanout", "n", "--cpus", "0", code=2).err.replace("\n", " ")
