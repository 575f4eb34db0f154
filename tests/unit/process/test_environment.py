"""What a task is told through its environment: rules.md 3, A2 and A6."""

import os
import shutil
from typing import Literal

import pytest

from jobq.backend import FencingNumber
from jobq.errors import MalformedTask
from jobq.run.process import environment
from jobq.run.process.environment import (
    CREDENTIALS,
    argv_of,
    inherited_environment,
    shell_argv,
    start_environment,
    task_environment,
)
from jobq.task import Task

WORKER = {
    "PATH": "/bin",
    "HOME": "/home/w",
    "USER": "w",
    "LOGNAME": "w",
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "TZ": "UTC",
    "TMPDIR": "/tmp",
}
TOLD = {"JOBQ_TASK_ID": "t1", "JOBQ_ATTEMPT": "2", "JOBQ_LEASE_TOKEN": "1.2.3", "JOBQ_QUEUE_NAME": "q"}


def told(
    base: dict[str, str],
    *,
    mode: Literal["inherit", "clean"] = "inherit",
    checkpoint: str | None = None,
    env: dict[str, str] | None = None,
    trace_context: dict[str, str] | None = None,
) -> dict[str, str]:
    return task_environment(
        Task.new(id="t1", command="true", env=env or {}, trace_context=trace_context or {}),
        attempt=2,
        fencing=FencingNumber(1, 2, 3),
        queue_name="q",
        checkpoint=checkpoint,
        inherited=inherited_environment(base, mode),
    )


def test_inherit_is_the_workers_plus_what_jobq_says() -> None:
    assert told({**WORKER, "CUDA_VISIBLE_DEVICES": "0"}) == {**WORKER, "CUDA_VISIBLE_DEVICES": "0", **TOLD}


def test_clean_is_a_short_list() -> None:
    assert told({**WORKER, "CUDA_VISIBLE_DEVICES": "0", "LD_PRELOAD": "x", "LCX": "x"}, mode="clean") == {
        **WORKER,
        **TOLD,
    }


@pytest.mark.parametrize("mode", ["inherit", "clean"])
def test_a6_nothing_of_jobq_and_no_credential_is_inherited(mode: Literal["inherit", "clean"]) -> None:
    secrets = dict.fromkeys([*CREDENTIALS, "JOBQ_CONNECTION_STRING", "JOBQ_HTTP_TOKEN", "JOBQ_CHECKPOINT"], "canary")
    assert "canary" not in told({**WORKER, **secrets}, mode=mode).values()


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("HTTPS_PROXY", "http://user:canary@proxy:3128/", "http://proxy:3128/"),
        ("HTTPS_PROXY", " http://user:canary@proxy:3128/", "http://proxy:3128/"),
        ("https_proxy", "user:can/ary@proxy", "user:can/ary@proxy"),  # no address: nothing reads it so
        ("ALL_PROXY", "socks5h://user:c@nary@proxy:1080", "socks5h://proxy:1080"),
        ("http_proxy", "user:canary@proxy:3128", "proxy:3128"),
        ("HTTP_PROXY", "http://proxy:3128/a@b", "http://proxy:3128/a@b"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://user:canary@collector:4318", "https://collector:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://canary@collector/v1?a=b@c", "https://collector/v1?a=b@c"),
        ("NO_PROXY", "a@b", "a@b"),
        ("MY_URL", "https://user:own@data", "https://user:own@data"),
    ],
)
def test_a6_addresses_are_inherited_without_their_passwords(name: str, value: str, seen: str) -> None:
    assert told({**WORKER, name: value}) == {**WORKER, **TOLD, name: seen}
    assert told(WORKER, env={name: value})[name] == value, "what the task brings is its own"


@pytest.mark.parametrize("mode", ["inherit", "clean"])
def test_a6_what_jobq_starts_begins_with_what_a_task_gets(mode: Literal["inherit", "clean"]) -> None:
    secrets = dict.fromkeys([*CREDENTIALS, "JOBQ_CONNECTION_STRING", "JOBQ_HOME"], "canary")
    needed = {"PYTHONPATH": "/p", "LD_LIBRARY_PATH": "/l", "JOBQ_WORKER_ID": "outer"}
    own = {} if mode == "clean" else {"MINE": "1"}
    assert start_environment({**WORKER, **secrets, **needed, "MINE": "1"}, mode) == {**WORKER, **needed, **own}


@pytest.mark.parametrize(
    "name",
    [
        "AZURE_CLIENT_SECRET",
        "AZURE_CLIENT_CERTIFICATE_PASSWORD",
        "AZURE_PASSWORD",
        "AZURE_STORAGE_CONNECTION_STRING",
        "APPLICATIONINSIGHTS_CONNECTION_STRING",
        "PGPASSWORD",
        "PGPASSFILE",
    ],
)
def test_a6_the_credentials_that_jobq_consumes(name: str) -> None:
    assert name in CREDENTIALS


def test_the_tasks_own_variables_win_over_inherited_ones_and_may_be_credentials() -> None:
    own = {"HOME": "/mine", "PGPASSWORD": "mine", "JOBQ_QUEUE": "acct/next"}
    assert told({**WORKER, "PGPASSWORD": "worker's"}, env=own) == {**WORKER, **own, **TOLD}


def test_a_task_cannot_say_what_jobq_says() -> None:
    lies = dict.fromkeys([*TOLD, "JOBQ_CHECKPOINT"], "lie")
    assert told(WORKER, env=lies) == {**WORKER, **TOLD}
    assert told(WORKER, env=lies, checkpoint="page 7") == {**WORKER, **TOLD, "JOBQ_CHECKPOINT": "page 7"}


def test_s9_an_empty_checkpoint_is_one() -> None:
    assert told(WORKER, checkpoint="")["JOBQ_CHECKPOINT"] == ""
    assert "JOBQ_CHECKPOINT" not in told(WORKER)


def test_trace_context_is_the_tasks_and_nothing_else() -> None:
    base = {**WORKER, "TRACEPARENT": "worker's", "BAGGAGE": "worker's"}
    assert told(base) == {**WORKER, **TOLD}
    context = {"traceparent": "00-1", "TraceState": "a=b", "path": "/evil"}
    assert told(base, trace_context=context) == {**WORKER, **TOLD, "TRACEPARENT": "00-1", "TRACESTATE": "a=b"}


def test_a6_neither_argument_nor_our_own_environment_is_changed() -> None:
    base, before = dict(WORKER), dict(os.environ)
    told(base, env={"A": "b"})
    assert (base, dict(os.environ)) == (WORKER, before)


def test_a2_argv_runs_without_a_shell() -> None:
    assert argv_of(Task.new(argv=["echo", "$HOME; ls"])) == ("echo", "$HOME; ls")


def test_a_command_runs_in_bash() -> None:
    assert argv_of(Task.new(command="a | b")) == shell_argv("a | b") == (shutil.which("bash"), "-c", "a | b")


def test_without_bash_a_command_runs_in_sh(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    def which(name: str) -> str | None:
        looked_up.append(name)
        return None if name == "bash" else "/usr/bin/sh"

    monkeypatch.setattr(shutil, "which", which)
    environment._shell.cache_clear()
    try:
        assert shell_argv("a") == ("/usr/bin/sh", "-c", "a")
        assert shell_argv("b") == ("/usr/bin/sh", "-c", "b")
        assert looked_up == ["bash", "sh"]  # once
    finally:
        environment._shell.cache_clear()


def test_a_callback_is_no_command() -> None:
    with pytest.raises(MalformedTask, match="kwargs: arguments for a library callback"):
        argv_of(Task.new(kwargs={"a": 1}))
