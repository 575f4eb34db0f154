"""Where a process is among the control groups, by what /proc says on machines of all kinds."""

import os
from pathlib import Path

import pytest

from jobq.errors import ConfigurationError
from jobq.run.guardian.control_group import ControlGroup
from jobq.run.spawn import containment
from jobq.run.spawn.control_groups import NoControlGroup, own_group, what_tasks_would_notice

UNIFIED = "30 23 0:26 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
LEGACY = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def proc(folder: Path, own: str, mountinfo: str) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(own)
    (folder / "proc/self/mountinfo").write_text(mountinfo)
    return folder / "proc"


def a_group(path: Path, **files: str) -> Path:
    path.mkdir(parents=True)

    for name, content in {"cgroup.procs": f"1\n{os.getpid()}\n", **files}.items():
        (path / name.replace("__", ".")).write_text(content)
    return path


@pytest.mark.parametrize(
    ("root", "own", "below"),
    [
        ("/", "/user.slice/a.scope", "user.slice/a.scope"),
        ("/docker/1f", "/docker/1f", ""),  # bound into a container, without a namespace of its own
        ("/docker/1f", "/docker/1f/inner", "inner"),
        ("/", "/", ""),
    ],
)
def test_the_own_group_is_found_below_what_is_mounted(tmp_path: Path, root: str, own: str, below: str) -> None:
    """A folder with a blank, as the kernel writes it; and in a hybrid tree the line without controllers counts."""
    mount = tmp_path / "with blank"
    group = a_group(mount / below) if below else a_group(mount)
    info = LEGACY + UNIFIED.format(root=root, mount=str(mount).replace(" ", "\\040"))
    assert own_group(proc(tmp_path, f"4:memory:/else\n0::{own}\n", info)) == group


@pytest.mark.parametrize(
    ("own", "root", "files", "why"),
    [
        ("4:memory:/a\n", "/", {}, "no control groups of version 2"),
        ("0::/a\n", "/other", {}, "is not mounted here"),
        ("0::/../a\n", "/", {}, "is not mounted here"),  # outside of the namespace
        ("0::/a\n", "/", {"cgroup__procs": "1\n"}, "is not mounted here"),  # the mount is another tree's
        ("0::/a\n", "/", {"cgroup__type": "domain threaded\n"}, "is threaded"),
    ],
)
def test_why_there_is_none(tmp_path: Path, own: str, root: str, files: dict[str, str], why: str) -> None:
    a_group(tmp_path / "mount/a", **files)
    info = UNIFIED.format(root=root, mount=tmp_path / "mount")
    with pytest.raises(NoControlGroup, match=why):
        own_group(proc(tmp_path, own, info))


def test_a_machine_without_any(tmp_path: Path) -> None:
    with pytest.raises(NoControlGroup, match="no control groups"):
        own_group(tmp_path)


@pytest.mark.parametrize(
    ("files", "noticed"),
    [
        ({}, ""),
        ({"memory__max": "max\n", "cpu__max": "max 100000\n"}, ""),
        ({"memory__max": "1073741824\n"}, "memory.max"),
        ({"cpu__max": "200000 100000\n"}, "cpu.max"),
        ({"cgroup__subtree_control": "memory pids\n"}, "divides its resources"),
    ],
)
def test_auto_changes_nothing_that_a_program_looks_up(
    tmp_path: Path, files: dict[str, str], noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runtimes size their heaps by the files of their own group: in one below there are none."""
    group = a_group(tmp_path / "a", **files)
    assert (noticed in what_tasks_would_notice(group)) is True
    assert bool(what_tasks_would_notice(group)) is bool(noticed)
    monkeypatch.setattr(containment, "own_group", lambda: group)
    assert bool(containment.guardian_options("auto")) is not bool(noticed)
    assert containment.guardian_options("cgroup")[1].startswith(f"{group}/jobq-")
    assert containment.guardian_options("off") == []


def test_who_asks_for_a_group_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise NoControlGroup("no right to make a control group in /sys/fs/cgroup")

    monkeypatch.setattr(containment, "own_group", none)
    assert containment.guardian_options("auto") == []
    with pytest.raises(ConfigurationError, match=r"cannot be kept: no right .*Delegate=yes"):
        containment.guardian_options("cgroup")
    assert containment.try_here("auto", is_guarded=True).why.startswith("no right")
    assert containment.try_here("cgroup", is_guarded=False) == ("off", "tasks run without the guardian")


def test_a_kernel_that_cannot_kill_a_group(tmp_path: Path) -> None:
    """There is no cgroup.kill in what was made, which is removed again."""
    group = ControlGroup(str(tmp_path / "jobq-1"))
    group.enter()
    assert (group.path, group.why) == ("", "this kernel cannot kill a control group as a whole, Linux 5.14 can")
    assert not (tmp_path / "jobq-1").exists()
    assert group.leave()
    assert group.end(0)
