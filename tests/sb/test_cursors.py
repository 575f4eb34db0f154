"""`push --resume` and `fanout` on Service Bus, which keeps no named leases: the cursor stands in another queue's."""

from pathlib import Path

from jobq.task import Task
from tests.sb.stage import SPEC, Stage, staged

ELSEWHERE = {"JOBQ_LEASES": "cursors"}  # an embedded queue of this machine
LINES = 700  # more than one page


def _commands(stage: Stage) -> list[str]:
    tasks = [Task.decode(each.content.body) for each in stage.queue.messages()]
    return [task.argv[-1] if task.argv else str(task.command) for task in tasks]


async def test_an_interrupted_push_goes_on(tmp_path: Path) -> None:
    """Where the queue deduplicates, nothing is added twice: ids are made of the name and the line's offset."""
    lines = [f"echo {number}" for number in range(LINES)]
    whole = "".join(f"{line}\n" for line in lines).encode()
    push = ("push", "--resume", "monday", "tasks")
    async with staged(tmp_path, dedup_window=600.0) as stage:
        (stage.folder / "tasks").write_bytes(whole.replace(b"echo 600\n", b"\xff\n"))
        without = await stage.run(*push)
        assert without.code == 3
        assert "keeps no named leases" in without.err
        assert "JOBQ_LEASES names such a queue" in without.err
        interrupted = await stage.run(*push, **ELSEWHERE)
        assert "line 601" in interrupted.err
        (stage.folder / "tasks").write_bytes(whole)
        again = await stage.run(*push, "--accept-changes", **ELSEWHERE)
        assert again.code == 0, again.err
        assert "going on with tasks at line 501" in again.err
        assert _commands(stage) == lines
        done = await stage.run(*push, "--accept-changes", **ELSEWHERE)
        assert "monday is done" in done.err


async def test_cursors_of_two_queues_are_not_taken_for_one_another(stage: Stage) -> None:
    """They meet in one place, under one name: the second is refused, and not told to be done."""
    (stage.folder / "lines").write_text("a\nb\n")
    fanout = ("fanout", "sizes", "--lines", "lines", "--", "echo", "{line}")
    assert (await stage.run(*fanout, **ELSEWHERE)).code == 0
    assert _commands(stage) == ["a", "b"]
    other = await stage.run(*fanout, spec="demo", **ELSEWHERE)
    assert other.code == 2, other.err
    assert "begun with another queue" in other.err
    assert SPEC not in other.err
