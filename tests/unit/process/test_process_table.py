"""Which processes belong to which task, from one look at all of them."""

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from jobq.run.process import process_table
from jobq.run.process.process_table import ProcessRow


@pytest.fixture
def family() -> Iterator[list[int]]:
    """A shell and its two children, all asleep."""
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    assert shell.stdout is not None
    children = [int(shell.stdout.readline()) for _ in range(2)]
    yield [shell.pid, *children]
    for process in psutil.Process(shell.pid).children(recursive=True):
        process.kill()
    shell.kill()
    shell.wait()
    shell.stdout.close()


def seen(parent: int, created: float) -> ProcessRow:
    return ProcessRow(parent=parent, created=created, cpu_seconds=1.0, rss_bytes=10, is_alive=True)


def test_a_tree_holds_all_below_its_leader_and_nothing_beside_it() -> None:
    """S11: what a neighbour uses is not charged to a task."""
    everything = {1: seen(0, 1), 10: seen(1, 2), 11: seen(10, 3), 12: seen(11, 4), 20: seen(1, 2), 21: seen(20, 3)}
    found = process_table._trees(everything, {10, 20, 99})
    assert {leader: sorted(tree.rss_of) for leader, tree in found.items()} == {10: [10, 11, 12], 20: [20, 21]}
    assert (found[10].cpu_seconds, found[10].rss_bytes, found[10].created) == (3.0, 30, 2)


def test_a_number_taken_over_while_we_looked_adopts_nobody() -> None:
    """P4: 11 ended, its number went to a younger child of 20; the child that it left still names it as its parent."""
    everything = {10: seen(1, 2), 12: seen(11, 4), 20: seen(1, 2), 11: seen(20, 9)}
    found = process_table._trees(everything, {10, 20})
    assert sorted(found[20].rss_of) == [11, 20]


def test_a_zombie_counts_for_its_time_only() -> None:
    everything = {10: seen(1, 2), 11: seen(10, 3)._replace(is_alive=False, rss_bytes=0)}
    tree = process_table._trees(everything, {10})[10]
    assert (tree.cpu_seconds, tree.rss_of) == (2.0, {10: 10})


def test_both_ways_of_looking_see_the_same(family: list[int]) -> None:
    """What macOS uses, tried here."""
    by_psutil = process_table.from_psutil({family[0]})
    tree = process_table.trees([family[0]])[family[0]]
    assert set(family) <= set(tree.rss_of)
    assert set(family) <= by_psutil.keys()
    assert all(by_psutil[pid].parent == family[0] for pid in family[1:])
    assert process_table.from_psutil({2**30}) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="fork storms are watched through /proc")
def test_what_vanishes_while_we_look_harms_nobody() -> None:
    """Hundreds of processes come and go between the listing of /proc and the reading of it."""
    storm = subprocess.Popen(["sh", "-c", "while :; do (true); done"])
    try:
        found = [process_table.trees([storm.pid]).get(storm.pid) for _ in range(100)]
    finally:
        storm.kill()
        storm.wait()
    assert all(tree is not None and storm.pid in tree.rss_of for tree in found)


def test_proportional_shares(family: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gone counts nothing, what may not be read counts whole, nothing counts for more than was seen."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert process_table.pss_bytes({gone.pid: 1000}) == 0
    assert 0 < process_table.pss_bytes({os.getpid(): 2**40}) < 2**40
    assert process_table.pss_bytes({os.getpid(): 7}) == 7

    def denied(self: psutil.Process) -> None:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", denied)
    assert process_table.pss_bytes(dict.fromkeys(family, 1000)) == 3000


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([{7: 5, 5: 1, 1: 0}], {7, 5, 1}),
        ([{7: 5, 5: 3}], {7, 5}),  # 3 is another user's, who is hidden (hidepid)
        ([{7: 6}, {7: 5, 5: 1, 1: 0}], {7, 5, 1}),  # 6 ended meanwhile, and 5 adopted its child
        ([{7: 6}, {7: 5, 5: 3}], {7, 5}),
        ([{}], set()),
    ],
    ids=["all", "hidden", "adopted", "adopted and hidden", "gone"],
)
def test_a_lineage_is_read_as_far_as_it_can_be(
    monkeypatch: pytest.MonkeyPatch, looks: list[dict[int, int]], found: set[int]
) -> None:
    """The kernel's table is made up here: neither a parent that ends in between nor `hidepid` is to be had at will."""
    tables = iter(looks)
    table: dict[int, int] = {}

    def stat(name: str) -> bytes:
        nonlocal table
        if name == "7":
            table = next(tables, table)
        return b"%s (a) b) S %d 0" % (name.encode(), table[int(name)]) if int(name) in table else b""

    monkeypatch.setattr(process_table, "_stat", stat)
    assert process_table.lineage(7) == found
