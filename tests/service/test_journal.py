"""What a service's store knows of its tasks, by the command line and the library, over HTTP as everywhere."""

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jobq.errors import AccessDenied, ConfigurationError
from jobq.journal.records import TaskRecord
from jobq.journal.store import journal_of
from jobq.journal.wire import record_fields
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.spec import resolve
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_http import HttpBackend, HttpConnection
from tests.cli.conftest import Jobq
from tests.service.server import HttpServer, running

NOW = timedelta(0)
WORKER = {"JOBQ_GUARDIAN": "off", "JOBQ_SCHEDULED_EVENTS": "off"}


@pytest.fixture
def jobq(tmp_path: Path) -> Jobq:
    return Jobq(tmp_path)


def test_the_commands_that_ask_the_journal(jobq: Jobq, server: HttpServer, queue: str) -> None:
    spec = f"{server.url}/{queue}"
    done = jobq(spec, "push", "--ids", "-c", "echo hello").lines[0]
    dead = jobq(spec, "push", "--ids", "-c", "exit 3", "--num-retries", "0").lines[0]
    jobq(spec, "worker", env=WORKER)
    later = jobq(spec, "push", "--ids", "--delay", "1h", "-c", "true").lines[0]
    status, logs, stats = jobq.all(
        [spec, "status", done, dead, later, "--json"],
        [spec, "logs", done],
        [spec, "stats", "--json"],
        code=0,
    )
    assert [each["state"] for each in status.objects] == ["succeeded", "dead", "scheduled"]
    assert "hello" in logs.out
    assert [each["outcome"] for each in status.objects[0]["attempts"]] == ["succeeded"]
    assert '"dead": 1' in stats.out
    jobq.all([spec, "ps"], [spec, "cancel", later], code=0)
    (gone,) = jobq(spec, "status", later, "--json").objects
    assert gone["state"] == "canceled"


def test_a_push_waits_for_its_tasks(jobq: Jobq, server: HttpServer, queue: str) -> None:
    spec = f"{server.url}/{queue}"
    worker = threading.Thread(target=jobq, args=(spec, "worker", "--idle-timeout", "2s"), kwargs={"env": WORKER})
    worker.start()
    try:
        assert jobq(spec, "push", "--wait", "-c", "exit 7", "--num-retries", "0", code=7).code == 7
    finally:
        worker.join()


async def test_records_are_those_of_the_store(server: HttpServer, queue: str, tmp_path: Path) -> None:
    behind = resolve(f"{server.spec.rpartition('/')[0]}/{queue}", Settings(home=tmp_path))
    async with HttpBackend(HttpConnection(server.url), queue) as backend, behind as store:
        tasks = [Task.new(command="true", env={"WORD": "ü"}) for _ in range(4)]
        ids = await backend.push(tasks)
        first, second, third = await backend.receive(3, None, NOW)
        await first.settle(Complete(DONE))
        await second.settle(Requeue(second.task.requeued(failures=1).counters, NOW))
        await third.checkpoint("step 7", 1)
        ours, theirs = journal_of(backend), journal_of(store)
        asked = [*ids, "unknown"]
        assert [_steady(each) for each in await ours.find(asked)] == [
            _steady(each) for each in await theirs.find(asked)
        ]
        for id_ in asked:
            assert await ours.attempts(id_) == await theirs.attempts(id_)
            assert await ours.output(id_) == await theirs.output(id_)
        assert [each.id for each in await ours.running(10)] == [third.id]
        assert {each.id for each in await ours.unfinished("", 10)} == {second.id, third.id, ids[3]}
        behind_first = (await ours.unfinished("", 1))[0].id
        assert len(await ours.unfinished(behind_first, 10)) == 2
        stats = await ours.stats(3600.0), await theirs.stats(3600.0)
        assert stats[0].oldest_ready_seconds is not None
        assert None not in [each.first_ended_seconds for each in stats]
        assert (
            len({json.dumps(vars(each) | {"oldest_ready_seconds": 0, "first_ended_seconds": 0}) for each in stats}) == 1
        )
        names = {id_: str(each) for id_, each in zip(asked, await ours.cancel(asked), strict=True)}
        expected = {first.id: "ended", second.id: "canceled", third.id: "stopping", ids[3]: "canceled"}
        assert names == expected | {"unknown": "unknown"}


def _steady(record: TaskRecord) -> Any:
    """Return a record without what goes on while it is looked at."""
    return json.dumps(record_fields(record) | {"lease_left": None, "leased_at": None, "at": None})


async def test_more_dead_letters_than_one_answer_holds(
    server: HttpServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the oldest 10,000 were ever shown, without a word."""
    monkeypatch.setattr("jobq_http.backend.MOST_PEEKED", 4)
    async with HttpBackend(HttpConnection(server.url), queue) as backend:
        ids = await backend.push([Task.new(command="exit 3") for _ in range(10)])
        for delivery in await backend.receive(10, None, NOW):
            await delivery.settle(MoveToDeadLetters("failed", "by a test"))
        assert {letter.id for letter in await backend.dead_letters(100)} == set(ids)
        assert len(await backend.dead_letters(6)) == 6
        assert len(await backend.dead_letters(4)) == 4
        with pytest.raises(ConfigurationError, match="no place in a list"):
            await backend._ask("GET", "/dead-letters", query={"after": "1:nonsense"})


async def test_more_unfinished_tasks_than_one_answer_holds(
    server: HttpServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the first thousand nothing was shown, without a word."""
    monkeypatch.setattr("jobq_http.journal._MOST_SHOWN", 4)
    async with HttpBackend(HttpConnection(server.url), queue) as backend:
        ids = sorted(await backend.push([Task.new(command="true") for _ in range(10)]))
        journal = journal_of(backend)
        assert [each.id for each in await journal.unfinished("", 100)] == ids
        assert [each.id for each in await journal.unfinished("", 10)] == ids
        assert [each.id for each in await journal.unfinished("", 6)] == ids[:6]
        assert [each.id for each in await journal.unfinished(ids[1], 8)] == ids[2:]


async def test_an_answer_has_so_many_bytes_at_most(server: HttpServer, queue: str) -> None:
    """600 dead letters of 1 MB were one answer, which never came: they could neither be listed nor put back."""
    async with HttpBackend(HttpConnection(server.url), queue) as backend:
        ids = await backend.push([Task.new(kwargs={"data": "x" * 10**6}) for _ in range(9)])
        journal = journal_of(backend)
        assert all(len(record.body) < 20_000 for record in await journal.find(ids))
        assert len(await journal.unfinished("", 20)) == 9
        while deliveries := await backend.receive(10, None, NOW):  # as many as an answer holds
            for delivery in deliveries:
                await delivery.settle(MoveToDeadLetters("failed", "by a test"))
        first = await backend._ask("GET", "/dead-letters", query={"limit": "20"})
        assert len(json.dumps(first)) < 6 * 10**6
        letters = await backend.dead_letters(20)
        assert sorted(letter.id for letter in letters) == sorted(ids)
        assert all(len(letter.body) > 10**6 for letter in letters), "they are whole"


async def test_reading_needs_a_token_that_reads(jobq: Jobq, tmp_path: Path) -> None:
    spec = f"sqlite://{tmp_path}/served.db/demo"
    token = jobq("serve", "token", "create", spec, "--scope", "lease").out.strip()
    with running(spec, tmp_path) as server:
        async with HttpBackend(HttpConnection(server.url, token=token), "demo") as backend:
            with pytest.raises(AccessDenied, match="does not permit view"):
                await journal_of(backend).running(1)
            with pytest.raises(AccessDenied, match="does not permit operate"):
                await journal_of(backend).cancel(["one"])


async def test_a_journal_that_is_off_is_told(tmp_path: Path) -> None:
    with running(f"sqlite://{tmp_path}/served.db/demo", tmp_path) as server:
        server.stop()
        server._environment["JOBQ_JOURNAL"] = "off"
        server.start()
        async with HttpBackend(HttpConnection(server.url), "demo") as backend:
            with pytest.raises(ConfigurationError, match="journal is off"):
                await journal_of(backend).stats(60.0)
