"""`jobq QUEUE pull`: take one task, or a few, and run each here under its lease."""

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli.common import ExampleCommand, duration, json_option, read_settings, run_async, spec_of
from jobq.cli.display import terminal
from jobq.cli.worker_options import MEMORY_LIMIT, STOP_GRACE
from jobq.formats import durations

if TYPE_CHECKING:
    from jobq.backend import Backend, Delivery
    from jobq.run.attempt.supervisor import DeliveryReport
    from jobq.settings import Settings

_HELP: Final = """Take one task and run it here, under its lease, as a worker does; print what it prints, then end.

What becomes of the task is printed on standard error: done, will run again (its failures are not used up), or given up.
With -n up to N tasks one after another; a retry that falls due meanwhile counts as one. --json prints an object for
each task, and where there was none one whose result is "none".

Exit codes: 0 all done, 1 one failed or its lease was lost, 4 there was no task, 130 and 143 interrupted with it given
back.
"""
_EXAMPLES: Final = (
    "jobq demo pull",
    "jobq demo pull --wait 10m --json",
    "while jobq demo pull; do :; done          # one after another, until one fails or none is left",
)
_NOTHING: Final = 4


@click.command(cls=ExampleCommand, help=_HELP, examples=_EXAMPLES)
@click.option("-n", "--limit", metavar="N", type=click.IntRange(min=1), default=1, help="How many. Default: 1.")
@click.option("--wait", metavar="DURATION", callback=duration, help="How long to stay for a task. Default: not at all.")
@click.option(
    "--lease", metavar="DURATION", callback=duration,
    help="How long a lease is asked for; it is renewed while the task runs. Default: the queue's.",
)  # fmt: skip
@MEMORY_LIMIT
@STOP_GRACE
@click.option("--quiet-output", is_flag=True, help="Do not print what the task prints.")
@json_option
@click.pass_context
def pull(
    ctx: click.Context,
    /,
    limit: int,
    wait: timedelta | None,
    lease: timedelta | None,
    quiet_output: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run one task; see _HELP."""
    settings = read_settings(visibility_timeout=lease, quiet_output=quiet_output or None, **options)
    own = {
        "num_workers": 1,
        "idle_timeout": wait or timedelta(0),
        "time_limit": None,
        "restart": 0,
        "max_consecutive_failures": 0,
    }
    settings = settings.copied(own)
    spec = spec_of(ctx, settings)
    from jobq.run.spawn.choose_spawner import below_guardian  # noqa: PLC0415 - `jobq pull --help` needs none of it

    settings = below_guardian(sys.argv[1:], settings)
    from jobq.spec import resolve  # noqa: PLC0415 - as above

    echo = "nowhere" if settings.quiet_output else "stderr" if as_json else "stdout"
    work = _pull(resolve(spec, settings), settings, limit, echo, as_json=as_json)
    return run_async(work, settings.event_loop)


async def _pull(backend: "Backend", settings: "Settings", limit: int, echo: Any, *, as_json: bool) -> int:
    from jobq.cli.display.passthrough_log import PassthroughLog  # noqa: PLC0415 - as above
    from jobq.events import Event, Events  # noqa: PLC0415 - as above
    from jobq.run.worker.worker import Worker  # noqa: PLC0415 - as above

    reports: list[DeliveryReport] = []
    paused: list[str] = []
    not_allowed: dict[object, str] = {}  # why, by the ids of tasks

    def on_event(event: Event) -> None:
        if event.name == "queue.paused":
            paused.append(str(event.fields["detail"]))
        elif event.name in ("task.not_allowed", "task.misfit"):
            not_allowed[event.fields["task_id"]] = f": {event.fields['detail']}"
        screen.on_event(event)

    def on_report(_delivery: "Delivery", report: "DeliveryReport") -> None:
        reports.append(report)

    with PassthroughLog(echo=echo) as screen:
        async with backend:
            worker = Worker(
                backend,
                settings,
                events=Events(on_event),
                on_line=screen.on_line,
                on_bytes=screen.on_bytes,
                max_tasks=limit,
                on_report=on_report,
            )
            result = await worker.run()
    for report in reports:
        why = not_allowed.get(report.task_id, "")
        terminal.say(f"task {report.task_id} {_fate(report)}{why}", is_error=_result(report) != "done")
    if not (reports or result.exit_code):
        why = f": it is {terminal.visible(paused[0])}" if paused else ""
        terminal.say(f"no task on {backend.name}{why}")
    nothing = 1 if result.lost else _NOTHING
    code = result.exit_code or (int(result.succeeded != len(reports)) if reports else nothing)
    code = code or int(screen.lost_output)
    objects = [_object(report) for report in reports] or [{"id": None, "result": "unknown" if result.lost else "none"}]
    return terminal.put_report(objects, code) if as_json else code


def _result(report: "DeliveryReport") -> str:
    from jobq.run.attempt.retry import Cancel  # noqa: PLC0415 - as above
    from jobq.run.attempt.settle import Settled  # noqa: PLC0415 - as above
    from jobq.settlement import Complete, MoveToDeadLetters, Requeue  # noqa: PLC0415 - as above

    if report.settled is not Settled.YES:
        return "unknown" if report.settled is Settled.UNKNOWN else "lost"
    match report.verdict:
        case Complete():
            return "done"
        case MoveToDeadLetters():
            return "given_up"
        case Requeue():
            return "requeued"
        case Cancel():
            return "canceled"
    return "given_back"


def _fate(report: "DeliveryReport") -> str:  # noqa: PLR0911 - one row a kind
    from jobq.settlement import MoveToDeadLetters, Requeue  # noqa: PLC0415 - as above

    outcome = report.outcome
    what = f" ({outcome.detail}, after {durations.show(round(outcome.duration, 1))})" if outcome is not None else ""
    match _result(report), report.verdict:
        case "done", _:
            return f"done{what}"
        case "requeued", Requeue(_, delay):
            return f"did not succeed{what}; it may run again in {durations.show(round(delay.total_seconds(), 1))}"
        case "given_up", MoveToDeadLetters(_, description):
            return f"was given up, see `jobq QUEUE dead list`: {description}"
        case "canceled", _:
            return f"was canceled{what}"
        case "given_back", _:
            return "was given back unstarted"
        case "unknown", _:
            return f"ended{what}, but whether the queue knows is unknown"
    return f"lost its lease{what}; it will be delivered again"


def _object(report: "DeliveryReport") -> dict[str, Any]:
    from jobq.settlement import MoveToDeadLetters, Release, Requeue  # noqa: PLC0415 - as above

    fields: dict[str, Any] = {"id": report.task_id, "result": _result(report)}
    if isinstance(report.verdict, Requeue | Release):
        fields["delay_s"] = round(report.verdict.delay.total_seconds(), 3)
    if isinstance(report.verdict, MoveToDeadLetters):
        fields |= {"reason": str(report.verdict.reason), "description": report.verdict.description}
    if (outcome := report.outcome) is not None:
        fields |= {
            "outcome": str(outcome.kind),
            "exit_code": outcome.exit_code,
            "signal": outcome.signal,
            "duration_s": round(outcome.duration, 3),
            "detail": outcome.detail,
            "output_tail": outcome.output_tail,
        }
    return fields
