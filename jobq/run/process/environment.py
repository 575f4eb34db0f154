"""What a task learns from its environment, and the argv it runs (architecture 6; rules.md 3, A2 and A6)."""

import functools
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from jobq.backend import FencingNumber
from jobq.errors import MalformedTask
from jobq.run.process import call_function
from jobq.settings import TASK_VARIABLES, is_ours
from jobq.task import Task

# What jobq itself signs in with: a task that got them could act as the worker. A task that needs one brings its own.
CREDENTIALS: Final = frozenset(
    {
        # azure-identity, EnvironmentCredential: the worker's service principal and its user.
        "AZURE_CLIENT_SECRET",
        "AZURE_CLIENT_CERTIFICATE_PATH",  # a path, but the file is the private key
        "AZURE_CLIENT_CERTIFICATE_PASSWORD",
        "AZURE_PASSWORD",
        # azure-identity, WorkloadIdentityCredential: the file holds the token of the pod's identity.
        "AZURE_FEDERATED_TOKEN_FILE",
        # azure-identity, ManagedIdentityCredential in App Service, Container Apps and Azure ML: the header that the
        # local endpoint wants before it gives out tokens.
        "IDENTITY_HEADER",
        "MSI_SECRET",
        # azure-identity, AzurePipelinesCredential: the token of the pipeline's job.
        "SYSTEM_ACCESSTOKEN",
        # The queue's own account or namespace: what holds its key, or a signature by it.
        "AZURE_STORAGE_CONNECTION_STRING",
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_SERVICEBUS_CONNECTION_STRING",
        # libpq: the queue's database.
        "PGPASSWORD",
        "PGPASSFILE",  # a path, but the file holds the passwords
        "PGSERVICEFILE",  # may hold the password of a service
        "PGSSLKEY",  # a path, but the file is the private key
        # Telemetry: who has them can write in the worker's name.
        "APPLICATIONINSIGHTS_CONNECTION_STRING",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
    }
)
# Addresses that may hold a password: of a proxy, and where telemetry goes.
_ADDRESS: Final = re.compile(r"(?:HTTPS?|ALL|FTP)_PROXY|OTEL_EXPORTER_OTLP_(?:\w+_)?ENDPOINT", re.IGNORECASE)
_USER: Final = re.compile(r"^\s*([A-Za-z][\w+.-]*://)?[^/?#]*@")
# What Python and the numeric libraries read when they start or are imported.
_READ_AT_START: Final = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "OMP_", "OPENBLAS_", "MKL_", "BLIS_", "NUMEXPR_")
_CLEAN: Final = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"})
_MARK: Final = "JOBQ_WORKER_ID"
_TRACE: Final = ("traceparent", "tracestate", "baggage")
_TRACE_VARIABLES: Final = frozenset(name.upper() for name in _TRACE)
# Always jobq's word: a task that brings one of these would lie to its own processes.
_RESERVED: Final = TASK_VARIABLES - {"JOBQ_LEASE_NAME", "JOBQ_CALLBACK_SOCKET", "JOBQ_SLOT", _MARK}


def task_environment(
    task: Task,
    *,
    attempt: int,
    fencing: FencingNumber,
    queue_name: str,
    checkpoint: str | None,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Return the complete environment of one attempt; nothing else is changed, os.environ least of all (A6).

    The task's own variables win over inherited ones, jobq's five and the task's trace context over both.

    Args:
        task: whose variables and trace context to add.
        attempt: the number of this attempt, counted from 1.
        fencing: shown to the task as JOBQ_LEASE_TOKEN (S3).
        queue_name: the queue, without its location.
        checkpoint: the last accepted checkpoint (S9); None = the task has none, and the variable is absent.
        inherited: what every task finds; see `inherited_environment`.
    """
    environment = dict(inherited)
    environment.update((name, value) for name, value in task.env.items() if name not in _RESERVED)
    context = {name.lower(): value for name, value in task.trace_context.items()}
    environment.update((name.upper(), context[name]) for name in _TRACE if name in context)
    environment["JOBQ_TASK_ID"] = task.id
    environment["JOBQ_ATTEMPT"] = str(attempt)
    environment["JOBQ_LEASE_TOKEN"] = str(fencing)
    environment["JOBQ_QUEUE_NAME"] = queue_name
    if checkpoint is not None:
        environment["JOBQ_CHECKPOINT"] = checkpoint
    return environment


def own_environment() -> dict[str, str]:
    """Return this process's variables with the texts that their bytes are in UTF-8, whatever its locale says."""
    return {_as_utf8(name): _as_utf8(value) for name, value in os.environ.items()}


def _as_utf8(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def start_environment(base: Mapping[str, str], mode: Literal["inherit", "clean"]) -> dict[str, str]:
    """Return what a process of jobq's own is started with, for it can be read until that process has hidden itself.

    That is what any task finds, what Python reads when it starts, and, inside of a task, the mark of its worker.
    """
    started_with = inherited_environment(base, mode)
    started_with.update((name, value) for name, value in base.items() if name.startswith((*_READ_AT_START, _MARK)))
    started_with.pop("PYTHONINSPECT", None)  # it would open a prompt in place of the end
    return started_with


def inherited_environment(base: Mapping[str, str], mode: Literal["inherit", "clean"]) -> dict[str, str]:
    """Return what every task finds, before anything of its own.

    Args:
        base: the worker's environment.
        mode: inherit = the worker's variables but jobq's own and its credentials; clean = a short list of them.
    """
    inherited = _is_clean if mode == "clean" else _is_inherited
    return {
        name: _USER.sub(r"\1", value) if _ADDRESS.fullmatch(name) else value
        for name, value in base.items()
        if name and inherited(name)  # one without a name comes of a broken parent, and nothing can be started with it
    }


def argv_of(task: Task, arguments: Path | None = None) -> tuple[str, ...]:
    """Return what to execute for a task.

    Args:
        task: that is to run.
        arguments: the file with the keyword arguments of the function that it calls; None = it has none.

    Raises:
        MalformedTask: it holds arguments for a library callback, so there is nothing to execute.
    """
    if task.argv is not None:
        return task.argv
    if task.command is not None:
        return shell_argv(task.command)
    if task.call is not None:
        given = () if arguments is None else (str(arguments),)
        return (sys.executable, "-P", call_function.__file__, task.call, *given)
    raise MalformedTask("arguments for a library callback, which a worker of commands cannot run", "kwargs")


def shell_argv(command: str) -> tuple[str, ...]:
    """Return the argv that runs a shell command: bash, or sh where there is no bash."""
    return (_shell(), "-c", command)


@functools.cache
def _shell() -> str:
    return shutil.which("bash") or shutil.which("sh") or "/bin/sh"


def _is_clean(name: str) -> bool:
    return name in _CLEAN or name.startswith("LC_")


def _is_inherited(name: str) -> bool:
    # The worker's own trace context would hang every task below one unrelated span.
    return not (is_ours(name) or name in CREDENTIALS or name in _TRACE_VARIABLES)
