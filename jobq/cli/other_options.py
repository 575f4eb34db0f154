"""Options, commands and variables of ai4s-jobq (docs/from-ai4s-jobq.md), and others' words: what there is instead."""

from typing import Final

_NO_TERMINAL: Final = "output is read as it comes; for Python tasks set PYTHONUNBUFFERED=1"
_BY_CONTENT: Final = "push with --dedup-by-content"
_STOP_GRACE: Final = "JOBQ_STOP_GRACE is what a task has between SIGTERM and SIGKILL"
_WORKER_JOB: Final = "submit a job whose command is a worker: see docs/from-ai4s-jobq.md"
_AT_ONCE: Final = "it is -n, as in -n 8"
_ENDS: Final = "leave it out: a worker ends when its queue is empty"
_STAYS: Final = (
    "--idle-timeout 30d lets it wait on an empty queue; what keeps it running is a service manager, as in deploy/"
)
INSTEAD: Final = {
    "--burst": _ENDS,
    "--concurrency": _AT_ONCE,
    "--daemon": _STAYS,
    "--drain": _ENDS,
    "--force": "it is --yes; `delete` alone has --force",
    "--forever": _STAYS,
    "--format": "--json prints one object a line",
    "--jobs": _AT_ONCE,
    "--once": "`jobq QUEUE pull` runs one task",
    "--queue": "the queue stands before the command, as in: jobq demo size",
    "--json": "it stands behind the command, as in: jobq demo size --json",
    "--yes": "leave it out: nothing is asked; a filled queue is deleted by `delete --force`",
    "--watch": "`jobq QUEUE top` follows a queue",
    "--workers": _AT_ONCE,
    "--timeout": "it is a task's, given when that is pushed: push --timeout",
    "-P": _AT_ONCE,
    "-V": "it is --version",
    "--bg-dirsync-to": "jobq has none: save files with --checkpoint-store of a worker, and `jobq checkpoint --dir`",
    "--csv": "a task for each record of a file: jobq QUEUE push --each FILE.csv -- python train.py --lr={lr}",
    "--conn-str": "set JOBQ_CONNECTION_STRING: what stands in an option shows in `ps`",
    "--dedup-window": "the queue remembers ids: `push --dedup-by-content`, or `--id`; for how long is said when it is"
    " made (JOBQ_SERVICE_BUS_DEDUP_WINDOW)",
    "--emulate-tty": _NO_TERMINAL,
    "--heartbeat": "leave it out: the lease is always renewed",
    "--num-retries": "it is a task's, given when that is pushed: push --num-retries",
    "--no-heartbeat": "leave it out: the lease is always renewed, however short it is",
    "--num-workers": "leave it out: tasks are pushed in batches",
    "-j": _AT_ONCE,
    "-t": _NO_TERMINAL,
    "--proc": "leave it out for commands; a function is pushed with --call MODULE:FUNCTION",
    "--visibility-timeout": "it is --lease of `pull`, or JOBQ_VISIBILITY_TIMEOUT",
}
COMMANDS: Final = {
    "amlt": _WORKER_JOB,
    "copilot-skill": "jobq has none",
    "version": "it is `jobq --version`",
    "track": "`top` follows a queue, and `jobq serve` has a page for many",
    "workforce": _WORKER_JOB,
}
_NONE: Final = "leave it out"
_WORKSPACE: Final = "logs are JSON on standard error; JOBQ_TELEMETRY=azure-monitor sends traces and metrics"
VARIABLES: Final = {
    "JOBQ_AZURE_SUBSCRIPTION_ID": _NONE,
    "JOBQ_COPILOT_SKILL": _NONE,
    "JOBQ_DETERMINISTIC_IDS": _BY_CONTENT,
    "JOBQ_DISABLE_SCHEDULED_EVENTS": "it is JOBQ_SCHEDULED_EVENTS=off",
    "JOBQ_ENVIRONMENT_NAME": "set OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=NAME",
    "JOBQ_KILL_TIMEOUT": _STOP_GRACE,
    "JOBQ_LA_WORKSPACE": _WORKSPACE,
    "JOBQ_LA_WORKSPACE_ID": _WORKSPACE,
    "JOBQ_MLFLOW_LOG_PREFIX": _NONE,
    "JOBQ_PID_DIR": _NONE,
    "JOBQ_PREEMPTION_TIMEOUT": _STOP_GRACE,
    "JOBQ_SERVICEBUS_EMPTY_POLLS": "--idle-timeout is how long a worker stays on an empty queue",
    "JOBQ_SERVICEBUS_MAX_RETRIES": _NONE,
    "JOBQ_SERVICEBUS_MAX_WAIT_TIME": "leave it out: a receive waits until there is a task",
    "JOBQ_USE_LOGIN_SHELL": "write the command as: bash -lc '...'",
    "JOBQ_USE_MONTY_JSON": _NONE,
}
