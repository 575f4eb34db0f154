"""`jobq QUEUE push`: tasks from options, a file, a pipe or an argument vector into the queue, in bounded memory."""

import shlex
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli import completions
from jobq.cli.common import (
    Invocation,
    ProgramCommand,
    duration,
    json_option,
    program_of,
    read_settings,
    spec_of,
    time_limit,
    with_queue,
)
from jobq.cli.display import terminal
from jobq.cli.submit.push_options import (
    call_of,
    check_names,
    check_priority,
    check_rules,
    check_sources,
    kwargs_of,
    variables_of,
)
from jobq.errors import JobqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jobq.backend import Backend
    from jobq.cli.submit.push_given import Echo
    from jobq.settings import Settings
    from jobq.submit.input_lines import Input, TaskOptions

_HELP: Final = """Queue commands, which workers will run.

Tasks come from exactly one place: -c options, a FILE (`-` or nothing = standard input), a Python function (--call), a
program with its arguments after `--`, which is run without a shell, or a Python class that lists them (--spec, see
docs/work-specifications.md).

In a FILE each line is a command for the shell. Blank lines and lines that begin with # are skipped. A line that begins
with {" is a JSON object with the fields command, argv or call (with kwargs), and env, cwd, timeout (seconds), id,
priority, not_before (seconds since 1970), on_exit (rules), budgets (retries, preemptions, crashes). Options hold for
all tasks that do not say otherwise. Lines are queued as they come, so FILE may be a pipe that never ends.

With --resume NAME a push of FILE that was interrupted, however that was, is finished by running it again: no line is
lost, and none is queued twice where the queue knows ids again (elsewhere 500 at most). The same FILE is needed.
"""
_EXAMPLES: Final = (
    "jobq demo push -c 'python train.py --fold 1' -c 'python train.py --fold 2'",
    "jobq demo push tasks.txt",
    "jobq demo push --on-exit 3=fail --on-exit oom=delay:10m -c 'python train.py'",
    "jobq demo push --wait -c 'true' -c 'exit 3'    # while a worker runs: ends with 3",
    "jobq demo push --resume monday tasks.txt    # after an interruption: the same again",
    "seq 100 | sed 's/^/echo task /' | jobq demo push -",
    "jobq demo push --timeout 2h --env HF_TOKEN --cwd . -- python train.py --lr 0.1",
    """echo '{"argv": ["echo", "hello"], "priority": 5}' | jobq demo push""",
    """jobq demo push --call mypackage.training:fold --kwargs '{"n": 1}'""",
)


class _PushCommand(ProgramCommand):
    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the shape of a command line."""
        return ["[OPTIONS]", "[-c COMMAND ... | FILE | --call MODULE:FUNCTION | -- PROGRAM [ARGS]...]"]


@click.command(cls=_PushCommand, help=_HELP, examples=_EXAMPLES)
@click.argument("file", required=False, shell_complete=completions.files)
@click.option("-c", "--command", "commands", multiple=True, metavar="COMMAND", help="A shell command; may be repeated.")
@click.option(
    "--call",
    metavar="MODULE:FUNCTION",
    callback=call_of,
    help="A Python function, imported and called in a process of its own; what it returns is the task's result.",
)
@click.option("--kwargs", metavar="JSON", callback=kwargs_of, help="Its arguments by name, as a JSON object.")
@click.option(
    "-e",
    "--env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable for the tasks; NAME alone takes the value from here, so that it does not show in `ps`.",
)
@click.option("--cwd", metavar="FOLDER", help="Where they run; a relative one counts from here. Default: the worker's.")
@click.option(
    "--timeout", metavar="DURATION", callback=time_limit, help="How long one attempt may run, as in 90s or 2h."
)
@click.option("--delay", metavar="DURATION", callback=duration, help="How long to wait before they may start.")
@click.option("--priority", type=int, metavar="N", help="Higher first, where the queue knows priorities. Default: 0.")
@click.option("--id", "id_", metavar="ID", help="Name the one task; queueing the same id again changes nothing.")
@click.option(
    "--dedup-by-content",
    "by_content",
    is_flag=True,
    help="Name each task by what it is: the same one is queued once, however often it is pushed.",
)
@click.option("--num-retries", type=click.IntRange(min=0), metavar="N", help="Runs after a failure. Default: 3.")
@click.option(
    "--on-exit",
    multiple=True,
    metavar="WHEN=THEN",
    help="After this end do that: WHEN is a code, a signal, oom or timeout; THEN is retry, fail, delay:10m or"
    " queue:NAME, which the worker must list (--onward-queues).",
)
@click.option("--max-crashes", type=click.IntRange(min=0), metavar="N", help="Runs after a crash. Default: 3.")
@click.option(
    "--max-preemptions", type=click.IntRange(min=0), metavar="N", help="Runs after a preemption. Default: 100."
)
@click.option(
    "--spec", metavar="MODULE:NAME", help="Queue what a jobq.WorkSpecification or a generator function lists."
)
@click.option("--dry-run", is_flag=True, help="With --spec: print what would be queued, and queue nothing.")
@click.option("--resume", metavar="NAME", help="Push FILE so that an interrupted push goes on when it is run again.")
@click.option(
    "--accept-changes", is_flag=True, help="With --resume: lines that are not queued yet may have changed meanwhile."
)
@click.option("--no-create", is_flag=True, help="Do not make a missing queue, for which a mere sender has no right.")
@click.option("--wait", is_flag=True, help="Wait until all have ended; end with the worst exit code of theirs.")
@click.option(
    "--wait-timeout", metavar="DURATION", callback=duration,
    help="With --wait: how long; then end with 75, and say whose outcome is unknown. Default: until all have ended.",
)  # fmt: skip
@click.option("--ids", is_flag=True, help="Print each id once its task is safely queued.")
@json_option
@click.pass_context
def push(
    ctx: click.Context,
    file: str | None,
    commands: tuple[str, ...],
    call: str | None,
    kwargs: dict[str, Any] | None,
    variables: tuple[str, ...],
    cwd: str | None,
    timeout: timedelta | None,
    delay: timedelta | None,
    priority: int | None,
    id_: str | None,
    by_content: bool,
    num_retries: int | None,
    on_exit: tuple[str, ...],
    max_crashes: int | None,
    max_preemptions: int | None,
    spec: str | None,
    dry_run: bool,
    resume: str | None,
    accept_changes: bool,
    no_create: bool,
    wait: bool,
    wait_timeout: timedelta | None,
    ids: bool,
    as_json: bool,
) -> int:
    """Queue commands; see _HELP."""
    from jobq.cli.submit.push_given import Echo, push_given, pusher_to  # noqa: PLC0415 - as above
    from jobq.spec import parse  # noqa: PLC0415 - as above
    from jobq.submit.input_lines import TaskOptions, budgets_of  # noqa: PLC0415 - as above
    from jobq.telemetry.push_tracing import traced_push  # noqa: PLC0415 - as above

    settings = read_settings(
        num_retries=num_retries, max_crashes=max_crashes, max_preemptions=max_preemptions, on_exit=on_exit or None
    )
    check_rules(settings.on_exit, spec_of(ctx, settings), settings)
    queue = parse(spec_of(ctx, settings))  # before anything is read
    template = TaskOptions(
        env=variables_of(variables),
        cwd=None if cwd is None else str(Path.cwd() / cwd) if cwd else cwd,
        timeout=timeout.total_seconds() if timeout is not None else None,
        priority=priority,
        delay=delay,
        on_exit=settings.on_exit or None,
        trace_context=ctx.with_resource(traced_push(queue.queue, queue.scheme, settings.telemetry)),
        budgets=budgets_of(settings),
        by_content=by_content,
    )
    argv: tuple[str, ...] | None = program_of(ctx)
    check_sources(file, commands, argv, call, spec, id_)
    if kwargs is not None and call is None:
        raise click.UsageError("--kwargs are the arguments of a function: name it with --call MODULE:FUNCTION")
    _check_wait(wait, wait_timeout)
    echo = Echo(ids=ids, as_json=as_json, kept=[] if wait else None, wait_timeout=wait_timeout)
    names = "--id" if id_ is not None else "--dedup-by-content" if by_content else None
    awaited = partial(_awaited, echo=echo, priority=priority, names=names)
    if resume is not None:
        if by_content:
            raise click.UsageError("--resume knows what it has queued by itself: leave out --dedup-by-content")
        if wait and accept_changes:
            raise click.UsageError(
                "--wait finds its tasks by the lines of the file, which --accept-changes lets change"
            )
        code = _push_resumably(ctx, resume, file, template, settings, accept_changes, echo, no_create)
        echo.check()
        return code
    if accept_changes:
        raise click.UsageError("--accept-changes goes with --resume")
    if spec is not None:
        from jobq.cli.submit import work_specification  # noqa: PLC0415 - most pushes have none

        with terminal.data_apart():
            found = work_specification.specification_of(spec)
            code = with_queue(
                ctx,
                lambda backend: awaited(
                    backend,
                    push_all=lambda: work_specification.push_specification(
                        pusher_to(backend, echo, creates=not no_create),
                        found,
                        template,
                        backend=backend,
                        dry_run=dry_run,
                        as_json=as_json,
                    ),
                ),
                settings,
            )
        echo.check()
        return code
    if dry_run:
        raise click.UsageError("--dry-run goes with --spec")
    if file is not None or not (commands or argv or call):
        from jobq.cli.submit.push_chunks import LinePush  # noqa: PLC0415 - as above

        with _opened(file or "-") as source:
            code = with_queue(
                ctx,
                lambda backend: awaited(
                    backend,
                    push_all=LinePush(
                        pusher_to(backend, echo, creates=not no_create), source, template, _again(ctx), backend
                    ).run,
                ),
                settings,
                interruptible=True,
            )
        echo.check()
        return code
    given: list[dict[str, Any]] = [{"command": command} for command in commands]
    given = given or [{"argv": argv} if argv else {"call": call, "kwargs": kwargs}]
    named = {"id": id_} if id_ is not None else {}
    tasks = [template.task(**fields, **named) for fields in given]

    async def push_them(backend: "Backend") -> int:
        return await awaited(
            backend, push_all=lambda: push_given(pusher_to(backend, echo, creates=not no_create), tasks, backend)
        )

    code = with_queue(ctx, push_them, settings, interruptible=True, brief=not wait)
    echo.check()
    return code


def _opened(path: str) -> "Input":
    from jobq.submit.input_lines import Input  # noqa: PLC0415 - as above

    try:
        return Input(path)
    except JobqError as error:
        if not Path(path).exists():
            error.add_note(
                f"it was taken for a file of commands; a command is given with -c: push -c {shlex.quote(path)}"
            )
        raise


def _check_wait(wait: bool, wait_timeout: timedelta | None) -> None:
    if wait_timeout is not None and not wait:
        raise click.UsageError("--wait-timeout goes with --wait")


async def _awaited(
    backend: "Backend",
    echo: "Echo",
    push_all: "Callable[[], Awaitable[int]]",
    priority: int | None = None,
    names: str | None = None,
) -> int:
    """Push, and then, if that is wanted, wait for the end of what was pushed."""
    check_priority(backend, priority)
    check_names(backend, names)
    if echo.kept is None:
        return await push_all()
    from jobq.cli.interrupts import Interrupted  # noqa: PLC0415 - most pushes do not wait
    from jobq.cli.submit.wait_for_results import check_journal, left, wait_for  # noqa: PLC0415 - as above

    await check_journal(backend)
    try:
        if code := await push_all():
            return code
    except Interrupted as interrupted:  # it may come between the last acknowledgement and the wait
        if not (queued := len(echo.kept)):
            raise
        raise Interrupted(f"{interrupted}; {left(queued, queued)}", interrupted.ids) from None
    return await wait_for(backend, echo.kept, as_json=echo.as_json, timeout=echo.wait_timeout)


def _push_resumably(
    ctx: click.Context,
    name: str,
    file: str | None,
    template: "TaskOptions",
    settings: "Settings",
    accepts_changes: bool,
    echo: "Echo",
    no_create: bool,
) -> int:
    from jobq.cli.submit.cursor_lease import cursor_of  # noqa: PLC0415 - most pushes are none
    from jobq.cli.submit.push_given import pusher_to  # noqa: PLC0415 - as above
    from jobq.cli.submit.resumable_push import Resumable  # noqa: PLC0415 - as above
    from jobq.spec import parse  # noqa: PLC0415 - as above
    from jobq.submit.resumable_file import WalkedFile  # noqa: PLC0415 - as above

    if file is None or file == "-":
        raise click.UsageError("--resume reads a FILE, which it can read again from its middle; a pipe cannot be")
    if template.delay is not None:
        raise click.UsageError("--delay counts from when a line is read, so it cannot be the same again with --resume")
    walked = ctx.with_resource(WalkedFile(Path(file), terminal.say))

    async def work(backend: "Backend") -> int:
        check_priority(backend, template.priority)
        queue, creates = parse(spec_of(ctx, settings)), not no_create
        says = not echo.as_json
        async with cursor_of(backend, queue, settings, f"push:{name}", creates=creates, says=says) as cursor:
            resumable = Resumable(
                pusher=pusher_to(backend, echo, creates=creates),
                cursor=cursor,
                name=name,
                file=walked,
                template=template,
                accepts_changes=accepts_changes,
            )
            return await carry_through(backend, resumable)

    async def carry_through(backend: "Backend", resumable: Resumable) -> int:
        if echo.kept is None:
            return await resumable.run()
        from jobq.cli.submit.wait_for_results import check_journal, wait_for  # noqa: PLC0415 - as above

        await check_journal(backend)
        if code := await resumable.run():
            return code
        # Those of earlier runs too: the same command gives the same answer, however often it was interrupted.
        return await wait_for(backend, await resumable.ids(), as_json=echo.as_json, timeout=echo.wait_timeout)

    return with_queue(ctx, work, settings, interruptible=echo.kept is not None)


def _again(ctx: click.Context) -> str:
    """Return how this command line would read the rest of its file."""
    invocation = ctx.find_object(Invocation)
    given = [invocation.spec] if invocation and invocation.spec else []
    has_options = any(
        value not in (None, False, ()) for name, value in ctx.params.items() if name not in ("file", "commands")
    )
    return shlex.join(["jobq", *given, "push"]) + (" [the same options] -" if has_options else " -")
