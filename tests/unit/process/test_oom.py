"""The kernel's count of out-of-memory kills. All counter files here are FAKE, made by the test: no kill took place."""

from pathlib import Path

import pytest

from jobq.run.process.oom import OomCounter, OomWatch, oom_counter
from jobq.run.process.spawner import ExitStatus

KILLED = ExitStatus(signal=9)


def fake(folder: Path, path: str, text: str) -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("group", "file"),
    [
        ("0::/a/b\n", "groups/a/b/memory.events"),
        ("0::/seen/from/the/host\n", "groups/memory.events"),
        ("5:cpu,memory:/a\n0::/\n", "groups/memory/a/memory.oom_control"),
        ("4:memory:/not/mounted/here\n", "groups/memory/memory.oom_control"),
    ],
)
def test_the_nearest_group_is_asked(tmp_path: Path, group: str, file: str) -> None:
    fake(tmp_path, "proc/self/cgroup", group)
    fake(tmp_path, "proc/vmstat", "nr_free_pages 1\noom_kill 40\n")
    wanted = fake(tmp_path, file, "oom 9\noom_kill_disable 0\noom_kill 2\n")
    counter = oom_counter(tmp_path / "proc", tmp_path / "groups")
    assert (counter.file, counter.is_machine_wide, counter.read()) == (wanted, False, 2)


def test_the_machine_is_the_last_resort_and_nothing_is_no_error(tmp_path: Path) -> None:
    assert oom_counter(tmp_path, tmp_path).read() is None
    fake(tmp_path, "vmstat", "oom_kill 40\n")
    assert oom_counter(tmp_path, tmp_path).is_machine_wide
    assert OomCounter(tmp_path / "gone").read() is None
    assert OomCounter(fake(tmp_path, "odd", "oom_kill many\n")).read() is None


def test_this_machine_has_a_counter_that_can_be_read() -> None:
    counter = oom_counter()
    if counter.file is None:
        pytest.skip("no counter of out-of-memory kills here")
    assert counter.read() is not None


@pytest.mark.parametrize(
    ("status", "neighbours", "machine_wide", "says"),
    [
        (KILLED, False, False, "killed by the kernel: out of memory (how)"),
        (KILLED, True, False, "how; an out-of-memory kill by the kernel happened here meanwhile"),
        (KILLED, False, True, "how; an out-of-memory kill by the kernel happened here meanwhile"),
        (ExitStatus(exit_code=137), False, False, "how: a process of it was killed by the kernel: out of memory"),
        (ExitStatus(exit_code=137), True, False, "how; an out-of-memory kill by the kernel happened here meanwhile"),
        (ExitStatus(exit_code=1), False, False, "how"),
        (ExitStatus(signal=11), False, False, "how"),
    ],
)
def test_a_kill_is_told_as_surely_as_it_is_known(
    tmp_path: Path, status: ExitStatus, neighbours: bool, machine_wide: bool, says: str
) -> None:
    watch = OomWatch(OomCounter(fake(tmp_path, "fake", "oom_kill 1\n"), machine_wide))
    watch.begin().end()  # one that ended before is no neighbour
    witness = watch.begin()
    if neighbours:
        watch.begin().end()
    assert witness.explain(status, "how") == "how", "nothing was killed yet"
    fake(tmp_path, "fake", "oom_kill 2\n")
    assert witness.explain(status, "how") == says
