"""Bounds compose: what `push`, a result or a task's word may hold passes every later door of every backend.

The doors, in this order: push, peek, receive, renew with the journal's beat, checkpoint, requeue, dead letter, its
list, redrive and complete. At the edges of depth and of size.
"""

import asyncio
import functools
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobq.backend import Backend, Delivery
from jobq.errors import JobqError, MalformedTask
from jobq.formats.strict_json import MAX_DEPTH
from jobq.journal.records import (
    MAX_BEAT_OUTPUT_BYTES,
    MAX_DETAIL_CHARACTERS,
    MAX_OUTPUT_BYTES,
    MAX_TEXT_CHARACTERS,
    MAX_VALUE_BYTES,
    Attempt,
    Beat,
    end_of,
)
from jobq.queue import connect
from jobq.run.attempt.result import MAX_VALUE_DEPTH, with_written
from jobq.run.process.environment import argv_of
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Record, Release, Requeue
from jobq.spec import resolve
from jobq.task import MAX_BODY_BYTES, MAX_NEW_BYTES, Outcome, OutcomeKind, Task, TaskResult
from jobq.task_client import MAX_CHECKPOINT_BYTES, checked_checkpoint
from tests.service.server import running

if TYPE_CHECKING:
    from tests.postgres.server import Database

pytestmark = pytest.mark.check

LEASE: Final = timedelta(seconds=60)
WAIT: Final = timedelta(seconds=10)


def nested(depth: int, core: object) -> Any:
    value = core
    for _ in range(depth):
        value = [value]
    return value


@dataclass(frozen=True, kw_only=True)
class Case:
    """Where each part lies; small itself, so that it can be shown.

    Attributes:
        depth: of a keyword argument, below the object of them all.
        number: within it.
        body_bytes: of the whole task.
        value_depth, value_bytes: of the result, as it was written.
        text: what every text repeats.
        cut: how much each text stays below its cap, in characters.
    """

    depth: int
    number: float | str | None
    body_bytes: int
    value_depth: int
    value_bytes: int
    text: str
    cut: int

    def task(self) -> Task:
        """Return it where `push` takes it; what that refuses goes through no other door."""
        try:
            bare = Task.new(kwargs={"a": nested(self.depth, self.number), "b": ""}, created=1e9)
            room = max(0, self.body_bytes - len(bare.encode()))
            return Task.new(kwargs={**(bare.kwargs or {}), "b": "x" * room}, created=1e9, id=bare.id)
        except MalformedTask:
            return Task.new(command="true")

    def value(self) -> Any:
        """Return the result where it is kept; else none."""
        bare = json.dumps(nested(self.value_depth, [self.number, self.text])).encode()
        return with_written(Outcome(kind=OutcomeKind.SUCCEEDED), bare.ljust(self.value_bytes)).value

    def checkpoint(self) -> str:
        """Return it where it is taken; else an empty one."""
        try:
            return checked_checkpoint(self.filled(MAX_CHECKPOINT_BYTES // len(self.text.encode()) * len(self.text)))
        except ValueError:
            return ""

    def filled(self, size: int) -> str:
        """Return the text, repeated."""
        return (self.text * (size // len(self.text) + 1))[: max(1, size - self.cut)]

    def printed(self, most_bytes: int) -> str:
        """Return the end of an output, whose bytes were read as UTF-8."""
        return end_of(self.filled(most_bytes).encode("utf-8", "replace").decode(), most_bytes)


DEPTHS: Final = st.sampled_from([0, 1, *range(MAX_VALUE_DEPTH - 2, MAX_DEPTH + 2)])
CASES: Final = st.builds(
    Case,
    depth=DEPTHS,
    number=st.sampled_from([0, -(10**399) + 1, 10**399, 10**400, 1.5e308, 5e-324, True, None, "\0", "é"]),
    body_bytes=st.sampled_from([0, 60_000, *range(MAX_NEW_BYTES - 1, MAX_NEW_BYTES + 2), MAX_BODY_BYTES]),
    value_depth=DEPTHS,
    value_bytes=st.sampled_from([0, MAX_VALUE_BYTES - 1, MAX_VALUE_BYTES, MAX_VALUE_BYTES + 1]),
    text=st.sampled_from(
        ["a", "\n", "\0", "\x01", "\x7f", '"\\', "é", "\u2028", "𝄞", "\x1d", "\ufffe", "\udcff", "a\0é𝄞"]
    ),
    cut=st.sampled_from([0, 1, 10**9]),
)


WAYS: Final[dict[str, Callable[[int], Task]]] = {
    "values": lambda number: Task.new(call="m:f", kwargs={"a": [[]] * number}),
    "numbers": lambda number: Task.new(call="m:f", kwargs={"a": [0] * number}),
    "arguments": lambda number: Task.new(call="m:f", kwargs={f"a{name}": 0 for name in range(number)}),
    "baggage": lambda number: Task.new(command="true", trace_context={f"a{name}": "" for name in range(number)}),
    "variables": lambda number: Task.new(argv=["true"], env={f"a{name}": "" for name in range(number)}),
    "variable": lambda number: Task.new(argv=["true"], env={"a": "é" * number}),
    "words": lambda number: Task.new(argv=["true", *["a"] * number]),
    "command": lambda number: Task.new(command="true #" + "x" * number),
    "quotes": lambda number: Task.new(call="m:f", kwargs={"a": '"' * number}),
}


@functools.cache
def largest(way: str) -> Task:
    """Return the largest task that can be pushed, of those that are large in this way."""
    found, least, most = WAYS[way](1), 1, MAX_BODY_BYTES
    while most - least > 1:
        middle = min((least + most) // 2, 2 * least)  # what is far too large takes long
        try:
            found, least = WAYS[way](middle), middle
        except MalformedTask:
            most = middle
    return found


async def pass_all_doors(backend: Backend, case: Case, task: Task) -> None:
    async with backend:
        await backend.create()
        (id_,) = await backend.push([task])
        assert [found.id for found in await backend.peek(10)] == [id_]
        await (await _received(backend, task)).settle(Release(timedelta(milliseconds=1)))
        first = await _received(backend, task.released())
        record = await _record(first, case, "retry", OutcomeKind.FAILED)
        if (text := case.checkpoint()) and backend.capabilities.native_checkpoint:
            await first.checkpoint(text)
        counted = first.task.requeued(failures=2**31 - 1)
        await first.settle(Requeue(counted.counters, record=record))
        second = await _received(backend, counted)
        record = await _record(second, case, "dead", OutcomeKind.FAILED)
        await second.settle(
            MoveToDeadLetters("failed", f"{case.filled(MAX_DETAIL_CHARACTERS)}\n{case.printed(4096)}", record=record)
        )
        (dead,) = await backend.dead_letters(10)
        assert Task.decode(dead.body) == counted
        assert await backend.redrive([id_]) == [id_]
        third = await _received(backend, None)
        record = await _record(third, case, "done", OutcomeKind.SUCCEEDED)
        await third.settle(
            Complete(
                TaskResult(exit_code=0, value=case.value(), output_tail=case.printed(MAX_OUTPUT_BYTES)), record=record
            )
        )
        stats = await backend.stats()
        assert (stats.visible, stats.leased, stats.dead) == (0, 0, 0)


async def _received(backend: Backend, task: Task | None) -> Delivery:
    (delivery,) = await backend.receive(1, LEASE, WAIT)
    assert task is None or delivery.task.in_epoch(0) == task
    return delivery


async def _record(delivery: Delivery, case: Case, then: str, outcome: OutcomeKind) -> Record:
    """Renew as a worker does, and return what it records with the settle."""
    now = time.time()
    text, output = case.printed(MAX_TEXT_CHARACTERS), case.printed(MAX_BEAT_OUTPUT_BYTES)
    await delivery.renew(LEASE, Beat(at=now, started=now - 1, progress=0.5, text=text, output=output))
    detail = case.filled(MAX_DETAIL_CHARACTERS)
    attempt = Attempt(attempt=delivery.deliveries, outcome=outcome, then=then, ended=now, detail=detail)
    # A clock that was set from 1970 meanwhile makes the attempt that long.
    attempt = replace(attempt, started=0.0, host="h", pid=1, value=case.value(), program=case.printed(100))
    return Record(attempt, case.printed(MAX_OUTPUT_BYTES))


@contextmanager
def _store(name: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    spec = f"sqlite://{folder}/jobs.db"
    if name == "postgres":
        database: Database = request.getfixturevalue("postgres")
        spec = database.spec("").rstrip("/")
    if name == "http":
        with running(f"{spec}/demo", folder) as server:
            yield server.url
    else:
        yield "memory://bounds" if name == "memory" else spec


@pytest.mark.slow("a service and its clients, each a process")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("memory", marks=pytest.mark.night),
        "sqlite",
        pytest.param("http", marks=pytest.mark.night),
        pytest.param("postgres", marks=pytest.mark.night),
    ],
)
def test_what_one_door_lets_in_the_next_does_not_refuse(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """S1, S6, L1: at the edges of depth and size, and with the characters that a format may choke on."""
    with _store(name, tmp_path, request) as place:

        @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
        @given(CASES)
        def check(case: Case) -> None:
            asyncio.run(pass_all_doors(resolve(f"{place}/q-{uuid4().hex[:8]}", Settings()), case, case.task()))

        check()


@pytest.mark.slow("a service and its clients, each a process")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("memory", marks=pytest.mark.night),
        "sqlite",
        pytest.param("http", marks=pytest.mark.night),
        pytest.param("postgres", marks=pytest.mark.night),
    ],
)
def test_the_largest_task_of_each_kind_passes_each_door(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """S1: what is large by its number of values, names or words, which other doors count than bytes."""
    case = Case(depth=0, number=0, body_bytes=0, value_depth=1, value_bytes=0, text="a", cut=0)
    with _store(name, tmp_path, request) as place:
        for way in WAYS:
            asyncio.run(pass_all_doors(resolve(f"{place}/q-{way}", Settings()), case, largest(way)))


@pytest.mark.parametrize("way", ["variables", "variable", "words", "command"])
def test_the_largest_task_of_each_kind_can_be_started(way: str) -> None:
    """With the largest checkpoint, by execve(2): it was pushed, and ended after four starts that failed."""
    task = largest(way)
    environment = {**os.environ, **task.env, "JOBQ_CHECKPOINT": "x" * MAX_CHECKPOINT_BYTES}
    subprocess.run(argv_of(task), env=environment, check=True)


@pytest.mark.slow("a service and its clients, each a process")
async def test_batches_of_an_iterator_are_taken(tmp_path: Path) -> None:
    """Tasks that are taken one by one are taken from an iterator too, whatever they hold."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path) as server:
        async with connect(f"{server.url}/demo") as queue:
            tasks = [largest(way).copied({"id": f"{way}-{turn}"}) for turn in range(2) for way in WAYS]

            async def given() -> AsyncIterator[Task]:
                for task in tasks:
                    yield task

            assert await queue.push(given()) == (await queue.stats()).visible == len(tasks)


async def test_one_bad_settle_of_a_request_is_answered_for_itself(tmp_path: Path) -> None:
    """The neighbours are settled: of a request that is malformed in one item, and of one that is refused as a whole."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path) as server:
        async with resolve(f"{server.url}/demo", Settings()) as backend:
            for bad in ({"value": nested(100, 0)}, {"value": "\ud800"}, {"exit_code": 2**40}):
                await backend.push([Task.new(command="true") for _ in range(7)])
                held = await backend.receive(7, LEASE, WAIT)
                results = [TaskResult()] * 3 + [TaskResult(**bad)] + [TaskResult()] * 3
                answers = await asyncio.gather(
                    *(delivery.settle(Complete(result)) for delivery, result in zip(held, results, strict=True)),
                    return_exceptions=True,
                )
                assert isinstance(answers[3], JobqError), (bad, answers)
                assert [answer for at, answer in enumerate(answers) if at != 3] == [None] * 6, bad
                await held[3].settle(Complete(TaskResult()))
                assert (await backend.stats()).leased == 0
