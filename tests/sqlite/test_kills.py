"""S1, S2, S3 under SIGKILL: what was acknowledged is there, once, and nothing else is."""

import random
from collections import Counter
from pathlib import Path

import pytest

from jobq.clock import SystemClock
from jobq.errors import LockLost
from jobq.settlement import Complete
from jobq.testing.clock import VirtualClock
from jobq_sqlite import StoreFile
from jobq_sqlite.host import this_host
from tests.sqlite import children
from tests.sqlite.support import DONE, LEASE, NOW, Child, ask, backend, intact, real_file, states, tasks

KILLS = 36


def test_acknowledged_pushes_survive_kills(tmp_path: Path) -> None:
    """S1: every id that was said is in the file; S2: nothing is that was not pushed."""
    path, choose = tmp_path / "jobs.db", random.Random(1)
    said: list[str] = []
    for kill in range(KILLS):
        child = Child(children.push_for_ever, path, f"k{kill}")
        for _ in range(choose.randrange(12)):  # zero: killed while it starts
            said += (child.line() or "").split()
        said += " ".join(child.kill()).split()
        if path.exists():
            assert intact(path), f"after kill {kill}"
    found = states(path)
    assert len(said) > KILLS * 5, "too few pushes to prove anything"
    assert set(said) <= set(found), "an acknowledged task is gone"
    assert set(found.values()) == {"ready"}
    unsaid = Counter(id_.rsplit("-", 1)[0] for id_ in set(found) - set(said))
    assert all(id_.startswith("k") for id_ in unsaid)
    assert len(unsaid) <= KILLS, "at most the one push that the kill interrupted, and that whole"


async def test_settlements_survive_kills(tmp_path: Path) -> None:
    """S1, S3, S5: each task is in exactly one state, acknowledged ends stay, deliveries only rise."""
    path, choose = tmp_path / "jobs.db", random.Random(2)
    count = 600
    async with backend(real_file(path)) as queue:
        await queue.create()
        await queue.push(tasks(count))
    ended: dict[str, str] = {}
    leases = 0
    before = dict.fromkeys((task.id for task in tasks(count)), 0)
    for kill in range(KILLS):
        child = Child(children.work_for_ever, path, kill)
        lines = [child.line() for _ in range(choose.randrange(16))]
        for line in [*lines, *child.kill()]:
            verb, id_ = (line or "none none").split()
            leases += verb == "leased"
            if verb in ("done", "dead"):
                assert id_ not in ended, f"{id_} ended twice: {ended[id_]}, then {verb} (S5)"
                ended[id_] = verb
        after = dict(ask(path, "SELECT id, deliveries FROM task"))
        assert after.keys() == before.keys()
        assert all(after[id_] >= before[id_] for id_ in before), "a count of deliveries fell (S3)"
        before = after
        assert intact(path), f"after kill {kill}"
    found = states(path)
    assert len(ended) > KILLS, "too few settlements to prove anything"
    assert {id_: found[id_] for id_ in ended} == ended
    assert sum(before.values()) >= leases
    await _work_off(path, count)


async def _work_off(path: Path, count: int) -> None:
    """Two hours later all leases of the killed have run out: every task can be finished."""
    clock = VirtualClock(boottime=SystemClock().boottime() + 7200, wall=SystemClock().wall() + 7200)
    async with backend(StoreFile(path=path, clock=clock, host=this_host())) as queue:
        while found := await queue.receive(100, LEASE, NOW):
            for delivery in found:
                await delivery.settle(Complete(DONE))
                with pytest.raises(LockLost):
                    await delivery.checkpoint("late")
        stats = await queue.stats()
    assert (stats.visible, stats.leased, stats.scheduled) == (0, 0, 0)
    ends = Counter(states(path).values())
    assert ends["done"] + ends["dead"] == count
    assert ends["dead"] == stats.dead
