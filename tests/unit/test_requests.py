"""What a task asks of a machine, on its way: as people give it, on the wire, in the fingerprint."""

import json
from typing import Any

import pytest

from jobq.errors import MalformedTask
from jobq.resources.request import Resources, described, memory
from jobq.task import Task

MIB = 1024**2


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"cpus": 4}, Resources(cpus=4000)),
        ({"cpus": "0.5", "gpus": 2}, Resources(cpus=500, gpus=2000)),
        ({"gpus": 2, "mem": "12G"}, Resources(gpus=2000, mem=12 * 1024 * MIB)),
        ({"cpus": 0.1 + 0.2}, Resources(cpus=300)),
        ({"resources": {"mem": 17 * MIB}}, Resources(mem=17 * MIB)),
    ],
)
def test_numbers_and_sizes_as_people_have_them(given: dict[str, Any], kept: Resources) -> None:
    assert Task.new(command="true", **given).resources == kept


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cpus": 0}, "cpus: 0 is no number above 0"),
        ({"cpus": -1}, "cpus: -1 is no number above 0"),
        ({"cpus": 0.0001}, r"cpus: 0\.0001 is no number above 0"),
        ({"cpus": float("nan")}, "cpus: nan is no number above 0"),
        ({"cpus": True}, "cpus: True is no number above 0"),
        ({"cpus": "lots"}, "cpus: 'lots' is no number above 0"),
        ({"gpus": 0.5}, r"gpus: 0\.5 is no whole number of GPUs"),
        ({"gpus": 70_000}, "gpus: 70000000 is no number"),
        ({"mem": 12}, "mem: 12 is no number of bytes of 1 MiB or more"),
        ({"mem": "2Z"}, "mem: '2Z' is not a size"),
        ({"mem": 1.5}, r"mem: 1\.5 is no number of bytes"),
        ({"needs": []}, "needs: has 0 tags"),
        ({"needs": "a100"}, "needs: is a string, not an array"),
        ({"needs": ["a b"]}, "needs: 'a b' is no tag"),
        ({"needs": [f"t{n}" for n in range(9)]}, "needs: has 9 tags"),
        ({"resources": {}}, "resources: asks for nothing"),
        ({"resources": {"gpu": 1}}, r"resources\.gpu: unknown field"),
        ({"resources": {"cpus": 1}, "gpus": 1}, "gpus: is given as resources, too"),
        ({"gpu": 1}, "did you mean gpus"),
        ({"memory": "1G"}, "did you mean mem"),
    ],
)
def test_what_nobody_can_ask_for(given: dict[str, Any], says: str) -> None:
    with pytest.raises(MalformedTask, match=says):
        Task.new(command="true", **given)


def test_memory_has_few_shapes() -> None:
    for asked in (MIB, 100 * MIB, 100 * MIB + 1, 12345678901):
        kept = memory(asked)
        assert asked <= kept <= asked * 1.0625
        assert memory(kept) == kept
    assert len({memory(MIB * 1024 + step * MIB) for step in range(1024)}) == 17


def test_version_3_is_written_only_for_what_version_2_lacks() -> None:
    """A worker of before goes on with all else (S2)."""
    assert json.loads(Task.new(command="true").encode())["version"] == 2
    task = Task.new(command="true", id="a", gpus=1, mem="1G", needs=["eu", "a100", "eu"], priority=3, not_before=5.0)
    message = json.loads(task.encode())
    assert message.keys() == {"version", "work", "state"}
    assert (message["version"], message["state"]["not_before"]) == (3, 5.0)
    work = json.loads(message["work"])
    assert work["resources"] == {"gpus": 1000, "mem": 1024 * MIB}
    assert work["needs"] == ["a100", "eu"]
    read = Task.decode(task.encode())
    assert read.copied({"work": None}) == task
    again = Task.decode(read.requeued(failures=1).encode())
    assert (again.resources, again.needs, again.counters.failures) == (task.resources, task.needs, 1)
    assert again.work == read.work, "no settlement changes the work"
    assert again.redriven(deliveries=2).encode() != again.encode()


def test_the_same_work_with_other_needs_is_another_task() -> None:
    """S8."""
    plain = Task.new(command="true")
    other: list[dict[str, Any]] = [
        {"cpus": 1},
        {"cpus": 2},
        {"gpus": 1},
        {"mem": "1G"},
        {"needs": ["a"]},
        {"needs": ["a", "b"]},
    ]
    tasks = [plain, *(Task.new(command="true", **each) for each in other)]
    assert len({task.fingerprint() for task in tasks}) == len(tasks)
    for task in tasks:
        assert Task.decode(task.encode()).fingerprint() == task.fingerprint()
    assert Task.new(command="true", needs=["b", "a"]).fingerprint() == tasks[-1].fingerprint()


def test_in_words() -> None:
    task = Task.new(command="true", cpus=1.5, gpus=1, mem="12G", needs=["eu", "a100"])
    assert described(task.resources, task.needs) == "cpus=1.5 gpus=1 mem=12 GiB needs a100, eu"
