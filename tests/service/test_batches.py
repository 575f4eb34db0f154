"""Batches over HTTP: what the conformance suite does not see."""

import base64
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobq.batch_plan import Plan
from jobq.batches import Batch, BatchState
from jobq.errors import (
    AnswerLost,
    BatchNotFound,
    BatchSealed,
    ConfigurationError,
    JobqError,
    MalformedTask,
    PushUnknown,
)
from jobq.settings import Settings
from jobq.settlement import Complete, Release
from jobq.spec import resolve
from jobq.submit.pusher import CHUNK_TASKS, Pusher
from jobq.task import MAX_BODY_BYTES, Task
from jobq.testing.harness import DONE
from jobq_http import HttpBackend, HttpConnection
from tests.service.server import HttpServer
from tests.support.tcp_proxy import TcpProxy, TcpStrike

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NOW = timedelta(0)
LOST = [TcpStrike.LOSE_ANSWER, TcpStrike.BREAK]
THEN = Task.new(command="python merge.py", id="then").encode().decode()


def signed(id_: str = "signed") -> Task:
    """A task of wire version 3, by a signature that nobody here looks at."""
    work = json.dumps({"id": id_, "command": "echo signed"})
    signature = {"keyid": "k", "sig": base64.b64encode(b"s").decode()}
    return Task.decode(json.dumps({"version": 3, "work": work, "signatures": [signature]}).encode())


async def test_its_refusals_are_those_of_its_store(server: HttpServer, queue: str, tmp_path: Path) -> None:
    """The same errors with the same words, so that what catches them here does so there."""
    said: list[list[str]] = []
    behind = resolve(f"{server.spec.rpartition('/')[0]}/{queue}", Settings(home=tmp_path))
    for backend in (HttpBackend(HttpConnection(server.url), queue), behind):
        async with backend:
            batches = backend.batches  # type: ignore[attr-defined] # both keep them
            await batches.begin("ended", Plan())
            await batches.seal("ended")
            refusals: list[tuple[type[JobqError], Awaitable[object]]] = [
                (BatchNotFound, backend.push([Task.new(command="true", batch="none")])),
                (BatchSealed, backend.push([Task.new(command="true", batch="ended")])),
                *((BatchNotFound, verb("none")) for verb in (batches.find, batches.seal, batches.reopen)),
                (BatchNotFound, batches.cancel("none")),
                (BatchNotFound, batches.members("none", "", 10)),
                (BatchNotFound, batches.find("no/../name")),
                (ConfigurationError, batches.begin("no/../name", Plan())),
                (MalformedTask, batches.begin("s7", Plan(then=("{}",)))),
            ]
            said.append([])
            for kind, refused in refusals:
                with pytest.raises(kind) as caught:
                    await refused
                assert type(caught.value) is kind
                said[-1].append(str(caught.value))
    assert said[0] == said[1]
    assert "batch 'ended' has finished" in said[0][1]


def test_other_programs_are_told_by_status_and_code(server: HttpServer, queue: str) -> None:
    path = f"/api/queues/{queue}/batches"
    into = {"tasks": [{"command": "true", "batch": "s7"}]}
    assert code(server.ask("POST", f"/api/tasks?queue={queue}", into)) == (404, "batch_not_found")
    assert code(server.ask("GET", f"{path}/s7")) == (404, "batch_not_found")
    assert server.ask("PUT", f"{path}/s7", {})[0] == server.ask("POST", f"{path}/s7/seal")[0] == 202
    assert code(server.ask("POST", f"/api/tasks?queue={queue}", into)) == (409, "batch_sealed")
    for name in ("-s7", "s%207", "s7%00", "s" * 65, "s7%0A"):
        assert code(server.ask("PUT", f"{path}/{name}", {})) == (400, "refused"), name
        assert code(server.ask("GET", f"{path}/{name}")) == (404, "batch_not_found"), name
    assert code(server.ask("GET", "/api/queues/nowhere/batches")) == (404, "queue_not_found")
    assert code(server.ask("DELETE", f"{path}/s7")) == (405, "no_such_method")
    for bad in ({"params": {"a b": 1}}, {"params": {"a": None}}, {"params": {"a": "x" * 5000}}, {"batch": "a b"}):
        for version in ({}, {"version": 2, "id": "a"}):
            task = {"command": "true", **version, **bad}
            assert code(server.ask("POST", f"/api/tasks?queue={queue}", {"tasks": [task]})) == (400, "malformed_task")


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


def test_pages_say_where_the_next_one_begins(server: HttpServer, queue: str) -> None:
    path = f"/api/queues/{queue}/batches"
    for name in ("a", "b", "c"):
        server.ask("PUT", f"{path}/{name}", {})
    server.ask(
        "POST",
        f"/api/tasks?queue={queue}",
        {"tasks": [{"command": "true", "id": id_, "batch": "b", "params": {"n": 1}} for id_ in ("x", "y", "z")]},
    )
    for page, kind, key, wanted in (
        (path, "batches", "name", ["a", "b", "c"]),
        (f"{path}/b/tasks", "tasks", "id", ["x", "y", "z"]),
    ):
        first = server.ask("GET", f"{page}?limit=2")[1]
        rest = server.ask("GET", f"{page}?limit=2&after={first['next']}")[1]
        assert [each[key] for each in first[kind] + rest[kind]] == wanted
        assert (first["next"], rest["next"]) == (wanted[1], None)
    assert server.ask("GET", f"{path}/b/tasks?state=dead")[1] == {"tasks": [], "next": None}


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (["{}"], "then.0.version: "),
        ([THEN, "no task"], "then.1"),
        ([THEN.replace("merge", "\\u0000")], "then.0.command: holds a NUL byte"),
        ([THEN.replace('"command"', '"batch":"s7","command"')], "then.0.batch: unknown field"),
        ([THEN.replace('"command"', '"params":{},"command"')], "then.0.params: unknown field"),
        ([THEN] * 17, "then"),
        ([Task.new(command="x" * 100_000).encode().decode()] * 11, "then: its tasks have 1"),
        ([THEN.replace("merge", "x" * 200_000)], "then.0.command: has 2"),
    ],
    ids=["empty", "no-task", "nul", "batch", "params", "many", "large", "long"],
)
def test_what_is_run_at_an_end_passes_the_door_of_a_push(
    server: HttpServer, queue: str, then: list[str], message: str
) -> None:
    """What could not be pushed is refused when the batch is begun; and nothing is begun."""
    status, answer = server.ask("PUT", f"/api/queues/{queue}/batches/s7", {"then": then})
    assert (status, answer["error"]["message"].startswith(message)) == (400, True), answer
    assert server.ask("GET", f"/api/queues/{queue}/batches")[1]["batches"] == []


async def test_the_largest_task_that_an_end_may_add_can_be_run(near: HttpBackend) -> None:
    """S1: its id grows when it is added, and what was let in must still be claimed, put back and done."""
    least, most = 1, MAX_BODY_BYTES
    name = "s" * 64

    def plan(size: int) -> Plan:
        return Plan(then=(Task.new(call="a:b", kwargs={"x": "y" * size}, id="a", created=1.0).encode().decode(),))

    while most - least > 1:
        middle = (least + most) // 2
        try:
            plan(middle).checked(name)
            least = middle
        except MalformedTask:
            most = middle
    await near.batches.begin(name, plan(least))
    with pytest.raises(MalformedTask):
        await near.batches.begin(name, plan(least + 1))
    await near.batches.seal(name)
    for _ in range(3):
        (held,) = await near.receive(1, None, timedelta(seconds=5))
        assert held.id == held.task.id == f"jobq.then.{name}.1"
        await held.settle(Release())
    (held,) = await near.receive(1, None, timedelta(seconds=5))
    held.task.requeued(failures=2**31 - 1, preemptions=2**31 - 1, ends=2**31 - 10).encode()
    await held.settle(Complete(DONE))


async def test_what_is_signed_to_be_run_at_an_end_stays_what_was_signed(near: HttpBackend) -> None:
    """Under the id of its round, which the service adds; by another name it would be signed for something else."""
    with pytest.raises(MalformedTask, match=re.escape("then.0.work.id: ")):
        await near.batches.begin("s7", Plan(then=(signed("jobq.then.s8").encode().decode(),)))
    given = signed("jobq.then.s7")
    await near.batches.begin("s7", Plan(then=(given.encode().decode(),)))
    for number in (1, 2):
        await near.batches.seal("s7")
        (held,) = await near.receive(1, None, timedelta(seconds=5))
        assert held.id == held.task.id == f"jobq.then.s7.{number}"
        assert held.task.work is not None
        assert given.work is not None
        assert (held.task.work.text, held.task.work.signatures) == (given.work.text, given.work.signatures)
        await held.settle(Complete(DONE))
        await near.batches.reopen("s7")


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("verb", ["begin", "seal", "cancel", "reopen", "push"])
async def test_a_lost_answer_is_told_and_the_same_again_is_as_once(
    near: HttpBackend, far: HttpBackend, proxy: TcpProxy, verb: str, lost: TcpStrike
) -> None:
    """No round is raised twice, nothing is added twice, and no end is told twice."""
    task = Task.new(command="true", batch="s7", params={"seed": 7})
    if verb != "begin":
        await near.batches.begin("s7", Plan(then=(THEN,)))
    if verb == "reopen":
        await near.batches.seal("s7")
        assert (await near.batches.find("s7")).state is BatchState.FINISHED
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "begin": lambda: far.batches.begin("s7", Plan(template="mine", then=(THEN,))),
        "seal": lambda: far.batches.seal("s7"),
        "cancel": lambda: far.batches.cancel("s7"),
        "reopen": lambda: far.batches.reopen("s7"),
        "push": lambda: far.push([task]),
    }
    place = b"/api/tasks" if verb == "push" else b"/batches/s7"
    proxy.strike(lost, lambda sent: place in sent)
    with pytest.raises(PushUnknown if verb == "push" else AnswerLost):
        await calls[verb]()
    assert proxy.struck == 1
    first = await calls[verb]()
    again = await calls[verb]()
    found = await near.batches.find("s7")
    if verb == "push":
        assert (found.total, first) == (1, [task.id])
        assert [each.params for each in await near.batches.members("s7", "", 10)] == [{"seed": 7}]
        await near.batches.seal("s7")
        assert await far.push([task]) == [task.id], "also when it was sealed meanwhile"
        return
    assert isinstance(first, Batch)
    assert first == again == found
    state = {"begin": BatchState.OPEN, "reopen": BatchState.OPEN}.get(verb, BatchState.FINISHED)
    assert (found.state, found.round) == (state, 2 if verb == "reopen" else 1)
    assert (await near.stats()).visible == (0 if verb == "begin" else 1), "one task at its end"


async def test_a_worker_is_handed_nothing_of_the_batch_and_its_ends_count(
    server: HttpServer, near: HttpBackend
) -> None:
    """Batch and params are kept by the queue alone."""
    await near.batches.begin("s7", Plan())
    plain = Task.new(command="true", id="plain", batch="s7", params={"seed": 7})
    tasks = [plain, signed().with_bookkeeping({"batch": "s7", "params": {"lr": 0.1}})]
    await near.push(tasks)
    await near.batches.seal("s7")
    claim = {"max_tasks": 2, "lease_seconds": 30.0, "raw": True}
    held = server.ask("POST", f"/api/tasks/next?queue={near.name}", claim)[1]["tasks"]
    bodies = {each["id"]: json.loads(each["body"]) for each in held}
    assert bodies["plain"].keys().isdisjoint({"batch", "params"})
    assert (bodies["plain"]["version"], bodies["signed"]["version"]) == (2, 3)
    assert bodies["signed"]["work"] == signed().work.text  # type: ignore[union-attr] # it is signed
    assert bodies["signed"]["signatures"] == [{"keyid": "k", "sig": base64.b64encode(b"s").decode()}]
    for each in held:
        receipt = {"receipt": each["receipt"]}
        path = f"/api/tasks/{each['id']}"
        back = receipt | {"counters": {"ends": 1}}
        assert server.ask("PUT", f"{path}/requeue?queue={near.name}", back)[0] == 202
    for each in server.ask("POST", f"/api/tasks/next?queue={near.name}", claim)[1]["tasks"]:
        done = {"receipt": each["receipt"]}
        assert server.ask("PUT", f"/api/tasks/{each['id']}/complete?queue={near.name}", done)[0] == 202
    found = await near.batches.find("s7")
    assert (found.state, found.counts["succeeded"]) == (BatchState.FINISHED, 2)
    assert {each.id: each.params for each in await near.batches.members("s7", "", 9)} == {
        "plain": {"seed": 7},
        "signed": {"lr": 0.1},
    }


async def test_a_chunk_of_tasks_with_the_most_params_is_one_request(near: HttpBackend) -> None:
    """L1: the bounds of a push are those of tasks, and of what stands beside them."""
    params: dict[str, Any] = {f"p{number:03}": number for number in range(100, 360)}
    params["text"] = "x" * (4096 - len(json.dumps({**params, "text": ""})))
    tasks = [Task.new(command="true", id=f"t{number:03}", batch="s7", params=params) for number in range(CHUNK_TASKS)]
    with pytest.raises(MalformedTask):
        Task.new(command="true", params={**params, "text": params["text"] + "x"})
    await near.batches.begin("s7", Plan())
    pusher = Pusher(near)
    await pusher.push_all(tasks)
    assert pusher.count == (await near.batches.find("s7")).total == CHUNK_TASKS
    found = await near.batches.members("s7", "", 1000)
    assert len(found) == 500
    assert all(each.params == params for each in found)


async def test_a_number_that_no_json_of_ours_holds_is_no_param() -> None:
    """It was let in by the library, and refused by the service."""
    for value in (10**400, float("nan"), True, None, "\0", "\ud800"):
        with pytest.raises(MalformedTask, match=re.escape("params.a: ")):
            Task.new(command="true", params={"a": value})
    for name in (1, None, True):
        with pytest.raises(MalformedTask):
            Task.new(command="true", params={name: 1})


async def test_a_service_that_is_newer_may_say_more(near: HttpBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields may be added to answers, at each depth."""
    await near.batches.begin("s7", Plan())
    await near.batches.seal("s7")
    ask = near._ask

    async def said(*args: Any, **kwargs: Any) -> Any:
        answer = await ask(*args, **kwargs)
        answer["new"] = answer["rounds"][0]["new"] = answer["counts"]["new"] = 1
        return answer

    monkeypatch.setattr(near, "_ask", said)
    found = await near.batches.find("s7")
    assert (found.state, [each.number for each in found.rounds]) == (BatchState.FINISHED, [1])
