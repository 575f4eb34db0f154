"""Hostile messages among good ones: no worker ends, all good is done, each bad one keeps its bytes (T8, L3, L4)."""

import asyncio
from collections import Counter

import pytest
from azure.storage.queue.aio import QueueClient

from jobq.task import Task
from jobq_azure.storage.message_format import MessageContent
from jobq_azure.storage.queue_client import StorageQueueClient
from tests.azure.faults import hostile
from tests.azure.stage import SHORT, Stage, ended

_PUTS_AT_ONCE = 16
_PATIENT = SHORT | {"JOBQ_VISIBILITY_TIMEOUT": "60s"}


async def _put_all(wire: StorageQueueClient, texts: list[str]) -> None:
    turn = asyncio.Semaphore(_PUTS_AT_ONCE)

    async def put(text: str) -> None:
        async with turn:
            await wire.put(text)

    await asyncio.gather(*(put(text) for text in texts))


@pytest.mark.slow("waits for outages and leases of Azurite")
@pytest.mark.parametrize(
    ("bad", "good"),
    [
        pytest.param(500, 50, id="500 among 50"),
        pytest.param(
            10_000,
            1_000,
            id="10,000 among 1,000",
            marks=[pytest.mark.night, pytest.mark.timeout(3600)],
        ),
    ],
)
async def test_hostile_among_good(stage: Stage, bad: int, good: int) -> None:
    texts = [hostile.text(seed) for seed in range(bad)]
    done = [MessageContent(Task.new(command="echo $JOBQ_TASK_ID >> done").encode()).text() for _ in range(good)]
    mixed = list(texts)
    for number, text in enumerate(done):
        mixed.insert(number * (bad // good + 1), text)
    await _put_all(await stage.wire(), mixed)
    worker = await stage.start("worker", "-n", "32", **_PATIENT)  # Azurite sorts all it holds at each receive
    result = await ended(worker, seconds=60 + bad / 4)
    assert result.code == 0, result.err[-2000:]
    ids = (stage.folder / "done").read_text().split()
    assert len(set(ids)) == good
    # A service that is this slow leaves a delete without an answer now and then: such a task, and no other, runs again.
    lines = result.err.splitlines()
    for task_id, runs in Counter(ids).items():
        assert runs <= 1 + sum(task_id in line and "no answer" in line for line in lines), f"{task_id} ran {runs} times"
    stats = await stage.behind.stats()
    assert (stats.total, stats.dead) == (0, bad)
    letters = await stage.behind.dead_letters(2 * bad)
    # Two that have the same bytes and name themselves the same are one letter for a reader.
    expected = Counter(MessageContent.read(text).body for text in texts)
    found = Counter(letter.body for letter in letters)
    assert found.keys() == expected.keys()
    told = {letter.reason for letter in letters}
    assert told <= {"malformed", "unknown"}, told  # unknown: a full message leaves no room for its story
    assert sum(letter.reason == "unknown" for letter in letters) <= sum(len(text) > 60_000 for text in texts)


@pytest.mark.night("waits for the walk over a page of letters: 31 s")
async def test_a_message_that_cannot_be_told_does_not_hide_others(stage: Stage) -> None:
    # Azurite takes a control character and then fails each answer that would hold it, hiding what it would have told.
    wire = await stage.wire()
    good = [MessageContent(Task.new(command="echo x >> done").encode()).text() for _ in range(12)]
    await _put_all(wire, good[:6])
    # Not by our own requests, which refuse to send it.
    async with QueueClient.from_connection_string(stage.azurite.connection_string, stage.queue) as stranger:
        await stranger.send_message("\x01", time_to_live=-1)
    await _put_all(wire, good[6:])
    worker = await stage.start("worker", "-n", "32", "--idle-timeout", "6s", **(SHORT | {"JOBQ_POLL_MAX": "500ms"}))
    result = await ended(worker)
    assert result.code == 0, result.err[-2000:]
    assert (stage.folder / "done").read_text() == "x\n" * 12
    assert await stage.total() == 1
