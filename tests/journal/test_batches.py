"""Batches as programs have them: `queue.batch`, `queue.map`, their values and rows, with and without `async`."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jobq
from jobq import batch_values
from jobq.batches import BatchState
from jobq.errors import BatchSealed, ConfigurationError, MalformedTask, TaskFailed, TaskNotFound
from jobq.journal.records import TaskRecord
from jobq.settings import Settings
from jobq.task import Task
from tests.journal import functions


def _settings(folder: Path) -> Settings:
    return Settings(home=folder, idle_timeout=timedelta(0), num_workers=4)


async def test_a_map_gives_values_in_the_order_of_its_items(tmp_path: Path) -> None:
    """As they end, whoever runs them; the same map again queues nothing, and gives the same."""
    settings = _settings(tmp_path)
    async with jobq.connect("demo", settings=settings) as queue:
        items = [{"left": 1, "right": 2}, (3, 4), (5,), {"left": "a", "right": "b"}]
        for _ in range(2):
            batch = await queue.map(functions.add, items, batch="s7", timeout=60)

        async def read() -> list[object]:
            return [value async for value in batch.values(progress=True)]

        reading = asyncio.create_task(read())
        await queue.worker()
        assert await reading == [3, 7, 15, "ab"]
        assert [row["param.left"] async for row in batch.results()] == [1, 3, 5, "a"]
        assert [row["value"] async for row in batch.results()] == [3, 7, 15, "ab"]
        assert (await batch.wait(timedelta(seconds=10))).state is BatchState.FINISHED
        with pytest.raises(BatchSealed):
            await batch.push([Task.new(command="true")])


async def test_what_is_no_column_is_an_argument_all_the_same(tmp_path: Path) -> None:
    """Names and sizes that a table of results cannot have keep nobody from calling a function."""
    async with jobq.connect("demo", settings=_settings(tmp_path)) as queue:
        many = {f"argument_{number}": "x" * 100 for number in range(60)}
        batch = await queue.map(functions.odd, [{"größe": 1, "text": "ab"}, {"größe": 2, **many}], batch="s7")
        await queue.worker()
        assert [value async for value in batch.values()] == [3, 62]
        first = await anext(batch.results())
        assert {name for name in first if name.startswith("param.")} == {"param.text"}


async def test_a_task_that_failed_is_told_at_its_place_and_again_after_a_retry(tmp_path: Path) -> None:
    async with jobq.connect("demo", settings=_settings(tmp_path)) as queue:
        budgets = {"retries": 0}
        batch = await queue.map(functions.inverse, [4, 0, 2], batch="s7", budgets=budgets)
        await queue.worker()
        values = batch.values()
        assert await anext(values) == 0.25
        with pytest.raises(TaskFailed, match="ZeroDivisionError") as failed:
            await anext(values)
        assert failed.value.id == "s7.000001"
        assert await batch.retry() == 1
        assert ((await batch.show()).round, (await batch.show()).state) == (2, BatchState.SEALED)
        await queue.worker()
        assert [each.number for each in (await batch.show()).rounds] == [1, 2]
        await queue.purge_dead(["s7.000001"])
        with pytest.raises(TaskNotFound, match="1 tasks of batch s7 were cleared or purged"):
            assert [value async for value in batch.values()] == [0.25, 0.5]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lags", [False, True])
async def test_a_value_that_the_journal_has_forgotten_is_told_after_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lags: bool
) -> None:
    """Also where the journal never hears of an end, which one beside its queue may not."""
    monkeypatch.setattr(batch_values, "_LATE_SECONDS", 0.5)
    monkeypatch.setattr(batch_values, "_LOOK_SECONDS", 0.1)
    async with jobq.connect("demo", settings=_settings(tmp_path)) as queue:
        batch = await queue.map(functions.add, [(1, 1), (2, 2), (3, 3), (4, 4)], batch="s7")
        backend: Any = batch._backend
        find, waiting = backend.journal.find, await backend.journal.find(["s7.000002"])
        await queue.worker()

        async def without_some(ids: Sequence[str]) -> list[TaskRecord]:
            found = [each for each in await find(ids) if each.id not in ("s7.000001", "s7.000002")]
            return found + (waiting if lags and "s7.000002" in ids else [])

        forgetful = SimpleNamespace(find=without_some, output=backend.journal.output)
        monkeypatch.setattr(batch_values, "journal_of", lambda _: forgetful)
        if lags:
            able = replace(backend.capabilities, journal_lags=True)
            monkeypatch.setattr(type(backend), "capabilities", property(lambda _: able))
        values = batch.values()
        assert [await anext(values), await anext(values)] == [2, 8]
        with pytest.raises(TaskNotFound, match=r"of 2 tasks of batch s7 nobody .*: s7.000001, s7.000002$") as told:
            await anext(values)
        assert told.value.ids == ["s7.000001", "s7.000002"]


async def test_what_no_journal_has_heard_of_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pusher may die before the journal beside its queue hears of its tasks, which are queued all the same."""
    monkeypatch.setattr(batch_values, "_LOOK_SECONDS", 0.1)
    async with jobq.connect("demo", settings=_settings(tmp_path)) as queue:
        batch = await queue.map(functions.add, [(1, 1)], batch="s7")
        found_by: Any = batch._backend
        find = found_by.journal.find

        async def of_what_has_ended(ids: Sequence[str]) -> list[TaskRecord]:
            return [each for each in await find(ids) if each.state.is_final]

        monkeypatch.setattr(batch_values, "journal_of", lambda _: SimpleNamespace(find=of_what_has_ended))

        async def read() -> list[object]:
            return [value async for value in batch.values()]

        reading = asyncio.create_task(read())
        assert not (await asyncio.wait({reading}, timeout=0.5))[0]
        await queue.worker()
        assert await reading == [2]


async def test_a_batch_is_sealed_when_its_block_is_left_without_an_error(tmp_path: Path) -> None:
    async with jobq.connect("demo", settings=_settings(tmp_path)) as queue:
        batch = queue.batch("s7", then=["true"])

        async def broken_off() -> None:
            async with batch:
                await batch.push([Task.new(command="true")])
                raise RuntimeError

        with pytest.raises(RuntimeError):
            await broken_off()
        assert (await batch.show()).state is BatchState.OPEN
        async with queue.batch("s7") as batch:
            (handle,) = await batch.push([Task.new(command="exit 3", budgets={"retries": 0})])
        with pytest.raises(TimeoutError, match="2 tasks are left"):
            await batch.wait(timedelta(0))
        await queue.worker()
        assert (await handle.result()).exit_code == 3
        assert (await batch.wait()).counts["dead"] == 1
        assert (await queue.task("jobq.then.s7.1").result()).succeeded
        assert (await batch.reopen()).round == 2
        await batch.push([Task.new(command="true")])
        canceled = await batch.cancel()
        assert (canceled.counts["canceled"], canceled.state) == (1, BatchState.FINISHED)


def test_the_same_without_async(tmp_path: Path) -> None:
    with jobq.sync.connect("demo", settings=_settings(tmp_path)) as queue:
        batch = queue.map(functions.add, [(1, 2), (3, 4)], batch="s7")
        queue.worker()
        assert list(batch.values(progress=True)) == [3, 7]
        assert [row["id"] for row in batch.results()] == ["s7.000000", "s7.000001"]
        with queue.batch("s8") as other:
            (handle,) = other.push([Task.new(command="true")])
        assert other.show().state is BatchState.SEALED
        queue.worker()
        assert handle.result().succeeded
        assert other.wait(timedelta(seconds=10)).total == 1
        assert other.retry() == 0
        assert other.reopen().state is BatchState.OPEN
        assert other.seal().state is BatchState.FINISHED
        assert other.cancel().state is BatchState.FINISHED


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([(1, 2), (1, 2, 3)], r"items\[1\]: too many positional arguments"),
        ([{"left": 1, "other": 2}], r"items\[0\]: got an unexpected keyword argument 'other'"),
        ([{1, 2}], r"items\[0\]: "),
    ],
)
async def test_items_that_are_no_arguments_are_refused_before_anything_is_queued(
    tmp_path: Path, items: list[object], said: str
) -> None:
    async with jobq.connect("demo", settings=_settings(tmp_path)) as queue:
        with pytest.raises(MalformedTask, match=said):
            await queue.map(functions.add, items, batch="s7")
        with pytest.raises(jobq.JobqError, match="does not exist"):
            await queue.batch("s7").show()


async def test_a_function_that_no_worker_can_import_is_refused(tmp_path: Path) -> None:
    async with jobq.connect("demo", settings=_settings(tmp_path)) as queue:
        with pytest.raises(ConfigurationError, match="is nothing that a worker can import"):
            await queue.map(lambda x: x, [1], batch="s7")
        with pytest.raises(ConfigurationError, match="cannot name a batch"):
            await queue.map(functions.add, [1], batch="a:b")


async def test_a_queue_without_batches_refuses_before_anything_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    async with jobq.connect("nobody/jobs", settings=Settings()) as queue:
        with pytest.raises(ConfigurationError, match="keeps no batches and no params"):
            queue.batch("s7")
