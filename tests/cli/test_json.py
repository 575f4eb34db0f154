"""`--json` on everything that reads or reports: one object a line on standard output, errors as JSON on the other.

The table below names every command, so that a new one without `--json` fails here.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
import pytest

from jobq.cli.main import cli
from jobq.signing.keys import KeyFile, SigningKey
from jobq.task import Task
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.check

EVENT: Final = {"ts", "level", "event", "msg", "queue", "backend", "worker_id", "host"}
DEAD: Final = {"id", "reason", "description", "deliveries", "died", "task"}
LEASE: Final = {
    "name",
    "state",
    "token",
    "holder",
    "remaining_s",
    "renewals",
    "acquired",
    "revoked",
    "confirmed",
    "cursor",
}
RECORD: Final = {"id", "state", "attempt", "since", "worker", "lease_left_s", "running", "last", "task"}
BATCH: Final = {"name", "state", "round", "total", "counts", "created", "sealed", "finished", "rounds", "is_canceled"}
TOKEN: Final = {"id", "name", "scopes", "queues", "created"}
KEY: Final = "ed25519-56475aa75463474c"
SOME_TOKEN: Final = "0123456789ab"
DIES: Final = "01a1fe07-0000-7000-8000-000000000001"
RAN: Final = "01a1fe07-0000-7000-8000-000000000002"
# Each command: how it is called (on a queue with two tasks and one dead letter), its exit code, and what its objects
# must have.
TABLE: Final[dict[str, tuple[Sequence[str], int, set[str]]]] = {
    "push": (("demo", "push", "-c", "true", "-c", "false"), 0, {"id"}),
    "worker": (("demo", "worker"), 0, EVENT),
    "run": (("run", "commands"), 1, {"done", "failed", "left", "exit_code", "failures"}),
    "queues": (("queues",), 0, {"queue"}),
    "size": (("demo", "size"), 0, {"visible", "leased", "scheduled", "dead"}),
    "peek": (("demo", "peek"), 0, {"id", "deliveries", "task"}),
    "check": (("demo", "check", "--look"), 0, {"what", "found", "verdict", "assumed", "advice"}),
    "status": (("demo", "status", DIES), 0, RECORD),
    "ps": (("demo", "ps"), 0, RECORD),
    "top": (("demo", "top"), 0, {"counts", "ended", "window_s", "oldest_ready_s", "running", "fault"}),
    "logs": (("demo", "logs", RAN), 0, {"id", "attempt", "output"}),
    "stats": (("demo", "stats"), 0, {"states", "ended", "window_s", "attempts_per_s", "left_s", "oldest_ready_s"}),
    "cancel": (("demo", "cancel", "--all", "--yes"), 0, {"id", "canceled"}),
    "dead list": (("demo", "dead", "list"), 0, DEAD),
    "dead show": (("demo", "dead", "show", DIES), 0, DEAD),
    "dead retry": (("demo", "dead", "retry", DIES), 0, {"id"}),
    "dead purge": (("demo", "dead", "purge", "--all", "--yes"), 0, {"id"}),
    "fanout": (("demo", "fanout", "n", "--lines", "commands", "-c", "echo"), 0, {"id"}),
    "batch list": (("demo", "batch", "list"), 0, BATCH),
    "batch show": (("demo", "batch", "show", "s7"), 0, BATCH),
    "batch wait": (("demo", "batch", "wait", "s7", "--timeout", "0s"), 75, BATCH),
    "batch retry": (("demo", "batch", "retry", "s7"), 0, BATCH),
    "batch cancel": (("demo", "batch", "cancel", "s7", "--yes"), 0, BATCH),
    "batch seal": (("demo", "batch", "seal", "s7"), 0, BATCH),
    "batch reopen": (("demo", "batch", "reopen", "s7"), 0, BATCH),
    "results": (("demo", "results", "--batch", "s7"), 0, {"id", "state", "outcome", "exit_code", "host", "seconds"}),
    "lease list": (("demo", "lease", "list"), 0, LEASE),
    "lease show": (("demo", "lease", "show", "nightly"), 0, LEASE),
    "lease release": (("demo", "lease", "release", "nightly"), 0, LEASE),
    "create": (("demo", "create"), 0, {"queue"}),
    "delete": (("demo", "delete", "--force"), 0, {"queue", "deleted"}),
    "clear": (("demo", "clear", "--yes"), 0, {"queue", "cleared"}),
    "pause": (("demo", "pause"), 0, {"queue", "paused"}),
    "resume": (("demo", "resume"), 0, {"queue", "paused"}),
    "healthcheck": (("healthcheck", "--file", "missing"), 1, {"healthy", "detail"}),
    "serve token create": (("demo", "serve", "token", "create", "--scope", "read"), 0, TOKEN | {"token"}),
    "serve token list": (("serve", "token", "list", "demo"), 0, TOKEN),
    "serve token revoke": (("serve", "token", "revoke", "demo", SOME_TOKEN), 0, TOKEN),
    "keys new": (("keys", "new", "another.key"), 0, {"id"}),
    "keys show": (("keys", "show", "own.key"), 0, {"id", "algorithm", "key"}),
    "keys trust": (("keys", "trust", "own.public"), 0, {"id"}),
    "keys revoke": (("keys", "revoke", KEY), 0, {"id"}),
    "keys check": (("keys", "check"), 0, {"id", "algorithm", "queues", "state"}),
    "help": (("help", "lock-lost"), 0, {"topic", "text"}),
    "config": (("config",), 0, {"setting", "variable", "value", "default", "origin"}),
}
WITHOUT: Final = {
    "completion": "prints a script for a shell, which is the data",
    "checkpoint": "says nothing: its exit code tells that it is saved",
    "progress": "says nothing",
    "lease run": "its output is the command's own",
}
LASTING = {"ui": "serves until it is interrupted; tests/dashboard/test_ui.py reads its object"}


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


def has_json(command: click.Command) -> bool:
    return any("--json" in parameter.opts for parameter in command.params)


def test_the_readme_tells_where_it_stands(jobq: Jobq) -> None:
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text().split())
    assert (
        "every one but `completion`, `lease run`, `checkpoint` and `progress` takes `--json` after its name" in readme
    )
    before, without = jobq.all(["--json", "demo", "size"], ["completion", "bash", "--json"], code=2)
    assert before.error["error"] == without.error["error"] == "UsageError"


def test_every_command_has_it() -> None:
    found = dict(commands(cli))
    assert set(found) == set(TABLE) | set(WITHOUT) | set(LASTING)
    assert {name for name, command in found.items() if not has_json(command)} == set(WITHOUT)


@pytest.mark.parametrize("command", TABLE)
def test_it_prints_objects(jobq: Jobq, command: str) -> None:
    arguments, code, wanted = TABLE[command]
    jobq.kill_tasks(Task.new(command="false", id=DIES))
    jobq.fill(Task.new(command="echo hello", id=RAN), Task.new(argv=["true"]))
    jobq.lease("nightly")
    if command == "logs":
        jobq("demo", "worker")
    elif command.split(maxsplit=1)[0] in ("batch", "results"):
        jobq("demo", "push", "--batch", "s7", "-c", "echo ü")
    elif command == "ps":
        jobq.hold()
    jobq.token(SOME_TOKEN)
    (jobq.folder / "commands").write_text("echo hello\nexit 3\n")
    key = SigningKey(id=KEY, algorithm="ed25519", secret=bytes(range(32)))
    key.write_new(jobq.folder / "own.key")
    (jobq.folder / "own.public").write_text(key.trusted().model_dump_json())
    KeyFile(keys=(key.trusted(),)).write(jobq.folder / "trusted.json")
    jobq.environment["JOBQ_TRUSTED_KEYS"] = str(jobq.folder / "trusted.json")
    result = jobq(*arguments, "--json", code=code)
    found = result.objects
    assert found
    assert all(wanted <= set(one) for one in found), found
    assert result.out.isascii()


def test_a_worker_tells_all_of_it_on_one_stream(jobq: Jobq) -> None:
    """In the order in which it happened; standard error is left to errors."""
    (id_,) = jobq.fill(Task.new(command="echo out; echo err >&2"))
    result = jobq("demo", "worker", "--json")
    assert result.err == ""
    names = [one["event"] for one in result.objects]
    assert names[0] == "worker.started"
    assert names[-1] == "worker.stopped"
    own = [one for one in result.objects if one.get("task_id") == id_]
    assert {one["event"] for one in own} == {"task.leased", "task.started", "task.output", "task.succeeded"}
    assert "contradict" in jobq("demo", "worker", "--json", "--log-format", "text", code=2).error["message"]


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (("nowhere", "worker"), 4, "QueueNotFound"),
        (("nowhere", "clear", "--yes"), 4, "QueueNotFound"),
        (("demo", "dead", "retry", "no-such-id"), 4, "NotFound"),
        (("demo", "dead", "purge", "no-such-id"), 4, "NotFound"),
        (("demo", "clear"), 2, "UsageError"),
        (("demo", "create", "--no-exist-ok"), 3, "ConfigurationError"),
        (("run", "no-such-file"), 2, "InputUnreadable"),
        (("config", "--oops"), 2, "UsageError"),
        (("demo", "serve", "token", "revoke", "no-such-id"), 4, "NotFound"),
        (("serve", "demo", "--host", "0.0.0.0", "--port", "0"), 3, "ConfigurationError"),
        (("serve", "memory://a/b"), 3, "ConfigurationError"),
        (("serve", "myaccount/demo"), 3, "ConfigurationError"),
        (("demo", "serve", "demo"), 2, "UsageError"),
    ],
)
def test_errors_are_objects_too(jobq: Jobq, arguments: Sequence[str], code: int, name: str) -> None:
    jobq.fill()
    result = jobq(*arguments, "--json", code=code)
    assert (result.error["error"], result.error["exit_code"]) == (name, code)
    assert all("error" not in one for one in result.objects)  # a worker has told that it began


def test_what_was_put_back_is_named_and_what_was_missing(jobq: Jobq) -> None:
    jobq.kill_tasks(Task.new(command="false", id=DIES))
    result = jobq("demo", "dead", "retry", DIES, "no-such-id", "--json", code=4)
    assert result.objects == [{"id": DIES}]
    assert result.error["ids"] == ["no-such-id"]


def test_events_that_nobody_reads_stop_no_worker(jobq: Jobq) -> None:
    jobq.fill(Task.new(command="touch done"))
    process = jobq.start("demo", "worker", "--json")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(20) == 0
    assert (jobq.folder / "done").exists()


def test_the_values_of_variables_stay_hidden(jobq: Jobq) -> None:
    """A5, in every command that shows tasks."""
    jobq.kill_tasks(Task.new(command="false", id=DIES, env={"TOKEN": "canary"}))
    jobq.fill(Task.new(command="true", env={"TOKEN": "canary"}))
    for arguments in (("peek",), ("dead", "list"), ("dead", "show", DIES), ("worker",)):
        shown: Any = jobq("demo", *arguments, "--json")
        assert "canary" not in shown.out + shown.err
