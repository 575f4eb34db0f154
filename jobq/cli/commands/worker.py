"""`jobq QUEUE worker`: options into settings, events onto the terminal; the work is in jobq.run.worker.worker."""

import os
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli.common import ExampleCommand, read_settings, run_async, spec_of
from jobq.cli.display.worker_log import WorkerLog
from jobq.cli.worker_options import (
    BACKOFF,
    LOAD,
    MEMFREE,
    MEMORY_LIMIT,
    SLOTS,
    STOP_GRACE,
    VIEW,
    offering,
    option,
    time_option,
)
from jobq.events import Events

if TYPE_CHECKING:
    from jobq.settings import Settings

_HELP: Final = """Run what is queued, each task as a supervised process that lives exactly as long as its lease.

The worker ends when the queue stays empty, on a limit, or on a signal. SIGTERM or Ctrl-C: running tasks are asked to
end, killed after --stop-grace and given back; twice Ctrl-C: at once. SIGUSR1: finish what runs, take nothing new.

Task output goes to standard output, logs to standard error; on a terminal a table of the slots is kept below them.
Into a file (worker > FILE), and with --quiet, output goes as tasks print it; else each line has its task's id.
Every option but --json and --max-tasks has a variable: --num-workers is JOBQ_NUM_WORKERS.
"""
_EXAMPLES: Final = (
    "jobq demo worker",
    "jobq demo worker -n 4 --idle-timeout 10m",
    "jobq demo worker -n auto --gpus auto --memory auto    # as many as fit this machine, see `jobq config`",
    "jobq demo worker --json > events.jsonl",
    "JOBQ_QUEUE=demo jobq worker --log-format json",
)
_HURRIED_FLUSH_SECONDS: Final = 2.0


@click.command(cls=ExampleCommand, help=_HELP, examples=_EXAMPLES)
@SLOTS
@offering
@time_option(
    "--visibility-timeout",
    text="How long a lease is asked for; it is renewed while a task runs.",
    default="the queue's",
)
@time_option(
    "--idle-timeout", text="How long an empty queue is watched before the worker ends.", default="ends when empty"
)
@time_option("--time-limit", text="How long new tasks are taken.", default="no limit")
@MEMORY_LIMIT
@LOAD
@MEMFREE
@option(
    "--max-consecutive-failures", metavar="N", type=click.IntRange(min=0),
    text="Exit 1 after so many first failures of different tasks in a row; 0 = never.", default="10",
)  # fmt: skip
@BACKOFF
@time_option("--backoff-max", text="Where doubling stops.", default="10m")
@STOP_GRACE
@option(
    "--log-format", text="auto = text on a terminal, json elsewhere.", default="auto",
    type=click.Choice(["auto", "text", "json"]),
)  # fmt: skip
@option(
    "--restart", metavar="N", type=click.IntRange(min=0),
    text="Start the worker again when a signal killed it, at most so often.", default="0",
)  # fmt: skip
@option(
    "--guardian", type=click.Choice(["on", "off"]),
    text="Whether a small parent process owns the tasks and kills what outlives its lease.", default="on",
)  # fmt: skip
@VIEW
@option(
    "--metrics-port", metavar="PORT", type=click.IntRange(1, 65535), default="none",
    text="Serve /metrics for Prometheus and /healthz there, on JOBQ_METRICS_HOST (127.0.0.1).",
)  # fmt: skip
@time_option("--keep", text="For how long the journal keeps what has ended.", default="30d")
@option(
    "--log-dir", metavar="PLACE", default="it is not written",
    text="Write all that tasks print to PLACE/QUEUE/ID.ATTEMPT.log, a folder or az://ACCOUNT/CONTAINER; `logs` finds it"
    " there.",
)  # fmt: skip
@option(
    "--checkpoint-store", metavar="PLACE", default="tasks have no such folder",
    text="Give each task a JOBQ_CHECKPOINT_DIR, whose files `jobq checkpoint --dir` saves there: a folder that all"
    " workers share, or az://ACCOUNT/CONTAINER.",
)  # fmt: skip
@click.option("--quiet-output", is_flag=True, help="Do not print what tasks print.")
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print events and what tasks print as JSON, one object a line, to standard output.",
)  # fmt: skip
@click.option(
    "--max-tasks", metavar="N", type=click.IntRange(min=1), help="End after so many tasks. Default: no limit."
)
@click.pass_context
def worker(ctx: click.Context, /, quiet_output: bool, as_json: bool, max_tasks: int | None, **options: Any) -> int:
    """Run what is queued; see _HELP."""
    if as_json and options["log_format"] == "text":
        raise click.UsageError("--json and --log-format text contradict each other")
    if as_json:
        options["log_format"] = "json"
    options["tags"] = options["tags"] or None
    settings = read_settings(quiet_output=quiet_output or None, **options)
    from jobq.run.spawn.choose_spawner import below_guardian  # noqa: PLC0415 - `jobq worker --help` needs none of it

    settings = below_guardian(sys.argv[1:], settings)
    spec = spec_of(ctx, settings)
    work = _work(spec, settings, max_tasks, echo_output=not settings.quiet_output, is_data=as_json)
    return run_async(work, settings.event_loop)


async def _work(spec: str, settings: "Settings", max_tasks: int | None, *, echo_output: bool, is_data: bool) -> int:
    from jobq.cli.display import live_view  # noqa: PLC0415 - `jobq worker --help` needs none of it
    from jobq.journal.records import host_of, this_holder  # noqa: PLC0415 - as above
    from jobq.run.process.usage import UsageSampler  # noqa: PLC0415 - as above
    from jobq.run.worker.offered import offered  # noqa: PLC0415 - as above
    from jobq.run.worker.worker import Worker  # noqa: PLC0415 - as above
    from jobq.spec import parse, resolve  # noqa: PLC0415 - as above
    from jobq.telemetry.setup import attached  # noqa: PLC0415 - as above

    settings, offer = await offered(settings, os.environ)
    backend = resolve(spec, settings)
    kind, holder = parse(spec).scheme, this_holder()
    is_live = live_view.is_wanted(settings.view, log_format=settings.log_format)
    sampler = UsageSampler(settings.memory_limit)
    console = WorkerLog(
        common={"queue": backend.name, "backend": kind, "worker_id": holder, "host": host_of(holder)[0]},
        log_format=settings.log_format,
        echo_output=echo_output,
        is_data=is_data,
        is_live=is_live,
    )
    events = Events(console.on_event)
    with console:
        async with backend, AsyncExitStack() as stack:
            if is_live:
                await stack.enter_async_context(live_view.of_worker(console.show, events, spec, settings, sampler))
            adapt = await stack.enter_async_context(attached(events, settings, backend, kind))
            worker = Worker(
                backend,
                settings,
                events=events,
                on_line=console.on_line,
                on_bytes=console.on_bytes,
                adapt=adapt,
                max_tasks=max_tasks,
                sampler=sampler,
                offer=offer,
            )
            report = await worker.run()
        if report.stopped_by is not None:
            console.flush_seconds = min(console.flush_seconds, _HURRIED_FLUSH_SECONDS)
    return report.exit_code or int(console.lost_output)
