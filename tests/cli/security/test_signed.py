"""A1: who may write to a queue is not who may run something on its workers, where these want signatures."""

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from jobq.backend import Backend
from jobq.signing.keys import KeyFile, SigningKey
from jobq.task import Task
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.check


@pytest.fixture
def key(jobq: Jobq) -> SigningKey:
    """A key that signs what this test pushes, and that its workers trust."""
    key = SigningKey.new()
    key.write_new(jobq.folder / "own.key")
    KeyFile(keys=(key.trusted(),)).write(jobq.folder / "trusted.json")
    jobq.environment["JOBQ_TRUSTED_KEYS"] = str(jobq.folder / "trusted.json")
    return key


def signing(jobq: Jobq) -> dict[str, str]:
    return {"JOBQ_SIGN_KEY_FILE": str(jobq.folder / "own.key")}


def dead(jobq: Jobq, queue: str = "demo") -> list[str]:
    return [letter["reason"] for letter in jobq(queue, "dead", "list", "--json").objects]


ON = {"JOBQ_REQUIRE_SIGNED": "on"}


@pytest.mark.usefixtures("key")
def test_only_what_is_signed_runs(jobq: Jobq) -> None:
    jobq("demo", "push", "--env", "A=1", "-c", 'echo "$A" > signed', env=signing(jobq))
    jobq("demo", "push", "-c", "touch unsigned")
    jobq("demo", "worker", env=ON)
    assert (jobq.folder / "signed").read_text() == "1\n"
    assert not (jobq.folder / "unsigned").exists()
    assert dead(jobq) == ["unsigned"]


@pytest.mark.usefixtures("key")
def test_each_way_to_push_signs(jobq: Jobq) -> None:
    env = signing(jobq)
    jobq("demo", "push", "-", stdin="touch a\ntouch b\n", env=env)
    (jobq.folder / "lines.txt").write_text("touch c\n")
    (jobq.folder / "names.txt").write_text("x\n")
    jobq("demo", "push", "--resume", "walk", "lines.txt", env=env)
    jobq("demo", "fanout", "names", "--lines", "names.txt", "--", "touch", "d{line}", env=env)
    jobq("demo", "worker", env=ON)
    assert sorted(path.name for path in jobq.folder.iterdir() if len(path.name) < 3) == ["a", "b", "c", "dx"]
    assert dead(jobq) == []


@pytest.mark.usefixtures("key")
def test_a_retry_a_dead_letter_and_a_redrive_stay_signed(jobq: Jobq) -> None:
    count = 'echo x >> ran; test "$(wc -l < ran)" -gt 3'
    jobq("demo", "push", "--num-retries", "1", "-c", count, env=signing(jobq))
    jobq("demo", "worker", env=ON | {"JOBQ_BACKOFF": "0s"})
    assert dead(jobq) == ["failed"]
    jobq("demo", "dead", "retry", "--all")
    jobq("demo", "worker", env=ON | {"JOBQ_BACKOFF": "0s"})
    assert (jobq.folder / "ran").read_text() == "x\n" * 4
    assert dead(jobq) == []


@pytest.mark.usefixtures("key")
def test_warn_runs_and_says_what_on_would_do(jobq: Jobq) -> None:
    jobq("demo", "push", "-", stdin="touch a\ntouch b\n")
    result = jobq("demo", "worker", env={"JOBQ_REQUIRE_SIGNED": "warn"})
    said = [line for line in (result.out + result.err).splitlines() if "JOBQ_REQUIRE_SIGNED=on would" in line]
    assert len(said) == 1, "once for each kind"
    assert "nobody has signed it; JOBQ_REQUIRE_SIGNED=on would make it a dead letter (unsigned)" in said[0]
    assert (jobq.folder / "a").exists()
    assert (jobq.folder / "b").exists()


def test_ten_tasks_of_a_key_that_is_not_known_end_the_worker_and_stay(jobq: Jobq, key: SigningKey) -> None:
    jobq("demo", "push", "-", stdin="touch ran\n" * 12, env=signing(jobq))
    KeyFile().write(jobq.folder / "trusted.json")
    result = jobq("demo", "worker", "--json", env=ON, code=3)
    refused = [event for event in map(json.loads, result.lines) if event["event"] == "task.not_allowed"]
    assert len(refused) == 10
    assert key.id in refused[0]["detail"]
    (size,) = jobq("demo", "size", "--json").objects
    assert (size["visible"] + size["scheduled"], size["dead"]) == (12, 0)
    KeyFile(keys=(key.trusted(),)).write(jobq.folder / "trusted.json")
    jobq("demo", "worker", "--max-tasks", "1", "--idle-timeout", "30s", env=ON)
    assert (jobq.folder / "ran").exists()


def _tampered(change: Callable[[dict[str, object]], None]) -> Callable[[Jobq], None]:
    def change_waiting(jobq: Jobq) -> None:
        async def change_it(backend: Backend) -> None:
            (waiting,) = await backend.peek(10)
            fields = json.loads(waiting.body)
            change(fields)
            await backend.clear()
            await backend.push([Task.decode(json.dumps(fields).encode())])

        jobq.inside(change_it)

    return change_waiting


def _other_command(fields: dict[str, object]) -> None:
    fields["work"] = str(fields["work"]).replace("touch ran", "touch evil")


def _budgets(fields: dict[str, object]) -> None:
    fields["work"] = str(fields["work"]).replace('"retries":3', '"retries":9')


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("tampered", [_tampered(_other_command), _tampered(_budgets)], ids=["command", "budgets"])
def test_what_was_changed_on_its_way_does_not_run(jobq: Jobq, tampered: Callable[[Jobq], None]) -> None:
    jobq("demo", "push", "-c", "touch ran", env=signing(jobq))
    tampered(jobq)
    jobq("demo", "worker", env=ON)
    assert dead(jobq) == ["bad_signature"]
    assert not {path.name for path in jobq.folder.iterdir()} & {"ran", "evil"}


@pytest.mark.usefixtures("key")
def test_what_was_signed_for_one_queue_does_not_run_in_another(jobq: Jobq) -> None:
    jobq("demo", "push", "-c", "touch ran", env=signing(jobq))
    stolen = jobq.inside(_waiting)
    jobq("other", "create")

    async def push(backend: Backend) -> None:
        await backend.push([stolen])

    jobq.inside(push, "other")
    jobq("other", "worker", env=ON)
    assert dead(jobq, "other") == ["wrong_queue"]
    assert not (jobq.folder / "ran").exists()


async def _waiting(backend: Backend) -> Task:
    (waiting,) = await backend.peek(10)
    return Task.decode(waiting.body)


@pytest.mark.usefixtures("key")
def test_a_replay_of_what_is_done_is_no_new_task(jobq: Jobq) -> None:
    """An SQL store knows an id for a month, as long as signatures count by default."""
    jobq("demo", "push", "-c", "echo x >> ran", env=signing(jobq))
    stolen = jobq.inside(_waiting)
    jobq("demo", "worker", env=ON)

    async def push(backend: Backend) -> None:
        await backend.push([stolen])

    jobq.inside(push)
    jobq("demo", "worker", env=ON)
    assert (jobq.folder / "ran").read_text() == "x\n"


def test_a_message_that_names_a_key_and_holds_no_task_is_a_dead_letter(jobq: Jobq) -> None:
    KeyFile().write(jobq.folder / "trusted.json")
    body = {"version": 3, "work": "{}", "state": {}, "signatures": [{"keyid": "x", "sig": ""}]}
    jobq("demo", "push", "-c", "true")
    with contextlib.closing(sqlite3.connect(jobq.home / "queues.db")) as database, database:
        database.execute("UPDATE task SET body = ?", (json.dumps(body).encode(),))
    jobq("demo", "worker", env=ON | {"JOBQ_TRUSTED_KEYS": str(jobq.folder / "trusted.json")})
    assert dead(jobq) == ["malformed"]


@pytest.mark.usefixtures("key")
def test_what_a_signed_queue_runs_by_jobq_run_needs_no_signature(jobq: Jobq) -> None:
    assert jobq("run", "-", stdin="echo own\n", env=ON).out == "own\n"


def test_a_worker_that_cannot_know_whom_to_trust_does_not_start(jobq: Jobq) -> None:
    jobq("demo", "push", "-c", "touch ran")
    result = jobq("demo", "worker", env=ON, code=3)
    assert "JOBQ_REQUIRE_SIGNED=on needs JOBQ_TRUSTED_KEYS" in result.err
    result = jobq("demo", "worker", env=ON | {"JOBQ_TRUSTED_KEYS": "/nonexistent"}, code=3)
    assert "JOBQ_TRUSTED_KEYS: /nonexistent: No such file or directory" in result.err
    result = jobq("demo", "push", "-c", "true", env={"JOBQ_SIGN_KEY_FILE": "/nonexistent"}, code=3)
    assert "JOBQ_SIGN_KEY_FILE: /nonexistent: No such file or directory" in result.err
    (size,) = jobq("demo", "size", "--json").objects
    assert (size["visible"], size["dead"]) == (1, 0), "nothing was pushed without the signature that was asked for"


def test_keys_from_the_command_line(jobq: Jobq) -> None:
    file, trusted = jobq.folder / "a.key", jobq.folder / "trusted.json"
    env = {"JOBQ_TRUSTED_KEYS": str(trusted), "JOBQ_SIGN_KEY_FILE": str(file)}
    (id_,) = jobq("keys", "new", str(file)).lines
    assert file.stat().st_mode & 0o777 == 0o600
    assert "File exists" in jobq("keys", "new", str(file), code=3).err
    public = jobq("keys", "show", str(file)).out
    secret = json.loads(file.read_text())["secret"]
    assert secret not in public
    jobq("keys", "trust", "-", "--queue", "train*", "--for", "1h", "--command", "^true", env=env, stdin=public)
    assert secret not in trusted.read_text()
    assert trusted.stat().st_mode & 0o777 == 0o600
    (shown,) = jobq("keys", "check", "--json", env=env).objects
    assert (shown["id"], shown["state"], shown["queues"], shown["commands"]) == (id_, "valid", ["train*"], ["^true"])
    jobq("keys", "revoke", id_, env=env)
    result = jobq("keys", "check", env=env, code=1)
    assert f"{id_}  revoked until" in result.out
    assert "would not be run here: the key is revoked" in result.err
    assert "no key ed25519-0 is trusted" in jobq("keys", "revoke", "ed25519-0", env=env, code=3).err
    assert "no key as `jobq keys show` prints it" in jobq("keys", "trust", "-", stdin="{}", env=env, code=3).err
    assert "is revoked; --restore trusts it again" in jobq("keys", "trust", "-", stdin=public, env=env, code=3).err
    bad = jobq("keys", "trust", "-", "--restore", "--command", "^(", stdin=public, env=env, code=3)
    assert "the command ^( is no regular expression" in bad.err
    trusted.chmod(0o640)
    (jobq.folder / "link").symlink_to(trusted)
    jobq("keys", "trust", "-", "--restore", env=env | {"JOBQ_TRUSTED_KEYS": str(jobq.folder / "link")}, stdin=public)
    assert trusted.stat().st_mode & 0o777 == 0o640, "who could read it can still"
    assert jobq("keys", "check", env=env).lines == [f"{id_}  valid  for *"]


def test_a_revoked_key_takes_effect_while_a_worker_runs(jobq: Jobq, key: SigningKey) -> None:
    jobq("demo", "push", "-c", "until [ -e go ]; do sleep 0.05; done", env=signing(jobq))
    jobq("demo", "push", "-c", "touch ran", env=signing(jobq))
    worker = jobq.start("demo", "worker", "--json", env=ON)
    assert worker.stdout is not None
    events = iter(worker.stdout.readline, b"")
    next(event for event in events if json.loads(event)["event"] == "task.started")
    jobq("keys", "revoke", key.id)
    (jobq.folder / "go").touch()
    assert worker.wait(20) == 0
    assert dead(jobq) == ["revoked_key"]
    assert not (jobq.folder / "ran").exists()


def test_the_key_of_who_pushes_is_not_in_what_is_pushed(jobq: Jobq, key: SigningKey) -> None:
    jobq("demo", "push", "-c", "true", env=signing(jobq))
    secret = json.loads(Path(jobq.folder / "own.key").read_text())["secret"]
    (waiting,) = jobq("demo", "peek", "--json").objects
    assert waiting["task"]["claimed_keys"] == [key.id]
    assert secret not in json.dumps(waiting)
