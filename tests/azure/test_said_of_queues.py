"""What commands say of a Storage Queue that differs from others: no priorities, and places beside the queue."""

import os

from tests.azure.emulator import ACCOUNT
from tests.azure.stage import Stage, remove_container


async def test_a_priority_is_refused_where_there_are_none(stage: Stage) -> None:
    """It was taken, and meant nothing."""
    await stage.pushed(command="true")
    (stage.folder / "tasks.txt").write_text("true\n")
    for source in (("-c", "true"), ("tasks.txt",), ("--resume", "s1", "tasks.txt")):
        result = await stage.run("push", "--priority", "5", *source)
        assert result.code == 2, result
        assert "delivers in order of arrival, and knows no priorities" in result.err
    assert (await stage.run("push", "--priority", "0", "-c", "true")).code == 0


async def test_what_is_made_beside_a_queue_is_no_queue(stage: Stage) -> None:
    """A large task, and a named lease, need a container: `created queue` was said of a queue that had been there."""
    other = f"{ACCOUNT}/{stage.queue}-new"
    assert f"created queue {stage.queue}-new" in (await stage.run("push", "-c", "true", spec=other)).err
    await remove_container(stage)
    large = await stage.run("push", "--env", "LARGE", "-c", "true", LARGE=os.urandom(60_000).hex())
    assert (large.code, "created" in large.err) == (0, False), large
    (stage.folder / "tasks.txt").write_text("true\n")
    resumable = await stage.run("push", "--resume", "s1", "tasks.txt")
    assert (resumable.code, "created" in resumable.err) == (0, False), resumable


async def test_what_tasks_ask_for_is_no_matter_of_the_queue(stage: Stage) -> None:
    """A push says so once, wherever its tasks say what they ask for."""
    (stage.folder / "plain.txt").write_text("true\n")
    (stage.folder / "asks.txt").write_text('{"command": "true", "needs": ["a100"]}\n' * 600)
    said = "hands out the oldest task, whatever that asks for"
    for options, count in (("plain.txt",), 0), (("asks.txt",), 1), (("--gpus", "1", "plain.txt"), 1):
        result = await stage.run("push", *options)
        assert (result.code, result.err.count(said)) == (0, count), result
    quiet = await stage.run("fanout", "lines", "--lines", "plain.txt", "--cpus", "2", "-c", "true")
    assert (quiet.code, quiet.err.count(said)) == (0, 1), quiet
