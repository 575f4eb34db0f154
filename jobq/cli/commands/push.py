"""`jobq QUEUE push`: tasks from options, a file, a pipe or an argument vector into the queue, in bounded memory."""

import shlex
from datetime import timedelta
from typing import Any, Final

import click

from jobq.cli import completions
from jobq.cli.common import (
    ProgramCommand,
    duration,
    json_option,
    program_of,
    read_settings,
    spec_of,
    time_limit,
)
from jobq.cli.submit.push_options import (
    asking,
    call_of,
    check_batch,
    check_rules,
    check_sources,
    kwargs_of,
    variables_of,
)
from jobq.cli.submit.sweep import EACH, GRID, sweep_of

_HELP: Final = """Queue commands, which workers will run.

Tasks come from exactly one place: -c options, a FILE (`-` or nothing = standard input), a Python function (--call), a
program with its arguments after `--`, which is run without a shell, or a Python class that lists them (--spec, see
docs/work-specifications.md).

With --grid or --each one command is a template, and makes a task for each point: {name} is filled in within the words
after `--`, without a shell; a -c stays as it is, and finds "$PARAM_name". {index} counts the points from 0.

In a FILE each line is a command for the shell. Blank lines and lines that begin with # are skipped. A line that begins
with {" is a JSON object with the fields command, argv or call (with kwargs), and env, cwd, timeout (seconds), id,
priority, not_before (seconds since 1970), on_exit (rules), budgets (retries, preemptions, crashes), cpus, gpus, mem and
needs (a list). Options hold for all tasks that do not say otherwise. Lines are queued as they come, so FILE may be a
pipe that never ends.

With --batch NAME all tasks of this push are one batch: `batch show` counts them, `batch wait` waits for their end,
`batch retry` runs the failed ones again, and `results` makes a table of them. A push of FILE, of points or of -c is
resumable then, as with --resume: the same command again goes on.

With --resume NAME a push of FILE or of points that was interrupted, however that was, is finished by running it again:
none is lost, and none is queued twice where the queue knows ids again (elsewhere 500 at most). The same FILE or points
are needed; a point's task has the id NAME.INDEX.
"""
_EXAMPLES: Final = (
    "jobq demo push -c 'python train.py --fold 1' -c 'python train.py --fold 2'",
    "jobq demo push tasks.txt",
    "jobq demo push --cpus 4 --gpus 1 --mem 12G -c 'python train.py'    # for workers that offer as much",
    "jobq demo push --on-exit 3=fail --on-exit oom=delay:10m -c 'python train.py'",
    "jobq demo push --wait -c 'true' -c 'exit 3'    # while a worker runs: ends with 3",
    "jobq demo push --resume monday tasks.txt    # after an interruption: the same again",
    "jobq demo push --batch s7 --grid lr=0.1,0.01 --grid seed=1..50 -- python train.py --lr={lr} --seed {seed}",
    """jobq demo push --each runs.csv --dry-run -c 'python train.py --lr "$PARAM_lr" | tee "run-$PARAM_index.log"'""",
    "jobq demo push --batch s8 --then 'python merge.py' tasks.txt",
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
@asking
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
    help="After this end do that: WHEN is a code, a signal, oom or timeout; THEN is retry, fail or delay:10m.",
)
@click.option("--max-crashes", type=click.IntRange(min=0), metavar="N", help="Runs after a crash. Default: 3.")
@click.option(
    "--max-preemptions", type=click.IntRange(min=0), metavar="N", help="Runs after a preemption. Default: 100."
)
@click.option(
    "--spec", metavar="MODULE:NAME", help="Queue what a jobq.WorkSpecification or a generator function lists."
)
@GRID
@EACH
@click.option(
    "--dry-run", is_flag=True,
    help="With --spec: print what would be queued; with --grid, --each: the first three, and how many. Queue nothing.",
)  # fmt: skip
@click.option(
    "--resume", metavar="NAME", help="Push FILE or points so that an interrupted push goes on when it is run again."
)
@click.option(
    "--accept-changes", is_flag=True,
    help="With --resume: what a file holds that is not queued yet may have changed meanwhile.",
)  # fmt: skip
@click.option(
    "--batch", "batch_name", metavar="NAME",
    help="Name what is pushed, as one batch; it is sealed at the end. See `jobq QUEUE batch`.",
)  # fmt: skip
@click.option(
    "--open", "stays_open", is_flag=True, help="With --batch: leave it open, so that more pushes can add to it."
)
@click.option(
    "--then", metavar="COMMAND", multiple=True,
    help="With --batch: queue this shell command, too, once all tasks of the batch have ended; may be repeated.",
)  # fmt: skip
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
    cpus: str | None,
    gpus: str | None,
    mem: str | None,
    needs: tuple[str, ...],
    id_: str | None,
    by_content: bool,
    num_retries: int | None,
    on_exit: tuple[str, ...],
    max_crashes: int | None,
    max_preemptions: int | None,
    spec: str | None,
    grids: tuple[str, ...],
    each: str | None,
    dry_run: bool,
    resume: str | None,
    accept_changes: bool,
    batch_name: str | None,
    stays_open: bool,
    then: tuple[str, ...],
    no_create: bool,
    wait: bool,
    wait_timeout: timedelta | None,
    ids: bool,
    as_json: bool,
) -> int:
    """Queue commands; see _HELP."""
    from jobq.cli.submit.push_given import Echo, HowToPush  # noqa: PLC0415 - `jobq push --help` needs none of it
    from jobq.formats.user_paths import working_folder  # noqa: PLC0415 - as above
    from jobq.spec import parse  # noqa: PLC0415 - as above
    from jobq.submit.input_lines import TaskOptions, budgets_of  # noqa: PLC0415 - as above
    from jobq.telemetry.push_tracing import traced_push  # noqa: PLC0415 - as above

    settings = read_settings(
        num_retries=num_retries, max_crashes=max_crashes, max_preemptions=max_preemptions, on_exit=on_exit or None
    )
    check_rules(settings.on_exit)
    queue = parse(spec_of(ctx, settings))  # before anything is read
    template = TaskOptions(
        env=variables_of(variables),
        cwd=None if cwd is None else str(working_folder() / cwd) if cwd else cwd,
        timeout=timeout.total_seconds() if timeout is not None else None,
        priority=priority,
        delay=delay,
        on_exit=settings.on_exit or None,
        trace_context=ctx.with_resource(traced_push(queue.queue, queue.scheme, settings.telemetry)),
        budgets=budgets_of(settings),
        by_content=by_content,
        cpus=cpus,
        gpus=gpus,
        mem=mem,
        needs=needs or None,
        batch=batch_name,
    )
    argv: tuple[str, ...] | None = program_of(ctx)
    is_sweep = bool(grids) or each is not None
    check_sources(file, commands, argv, call, spec, id_, is_sweep=is_sweep)
    check_batch(batch_name, stays_open=stays_open, then=then)
    if kwargs is not None and call is None:
        raise click.UsageError("--kwargs are the arguments of a function: name it with --call MODULE:FUNCTION")
    if wait_timeout is not None and not wait:
        raise click.UsageError("--wait-timeout goes with --wait")
    if accept_changes and resume is None:
        raise click.UsageError("--accept-changes goes with --resume")
    if dry_run and spec is None and not is_sweep:
        raise click.UsageError("--dry-run goes with --spec, --grid and --each")
    echo = Echo(ids=ids, as_json=as_json, kept=[] if wait else None, wait_timeout=wait_timeout)
    names = "--id" if id_ is not None else "--dedup-by-content" if by_content else None
    how = HowToPush(ctx=ctx, settings=settings, template=template, echo=echo, creates=not no_create, names=names)
    if batch_name is not None:
        from jobq.cli.submit.batch_push import BatchPush  # noqa: PLC0415 - most pushes have none

        runs = shlex.join(argv) if argv else call or "; ".join(commands)
        how.batch = BatchPush.of(batch_name, runs, then, template, stays_open=stays_open, creates=not no_create)
    # Alone in its batch, a push goes on under that name: the same command again queues what is left of it.
    own = None if stays_open or id_ is not None or by_content else batch_name
    resume = resume or (own if is_sweep or file not in (None, "-") else None)
    if is_sweep:
        from jobq.cli.submit.sweep_push import push_sweep  # noqa: PLC0415 - most pushes are none

        tasks = sweep_of(ctx, grids, each, commands, argv, template)
        code = push_sweep(how, tasks, resume, accepts_changes=accept_changes, dry_run=dry_run)
    elif resume is not None:
        from jobq.cli.submit.resumable_push import push_file_resumably  # noqa: PLC0415 - as above

        code = push_file_resumably(how, resume, file, accepts_changes=accept_changes)
    elif spec is not None:
        from jobq.cli.submit.work_specification import push_listed  # noqa: PLC0415 - as above

        code = push_listed(how, spec, dry_run=dry_run)
    elif file is not None or not (commands or argv or call):
        from jobq.cli.submit.push_chunks import push_lines  # noqa: PLC0415 - as above

        code = push_lines(how, file or "-")
    else:
        from jobq.cli.submit.push_given import named_tasks, push_given  # noqa: PLC0415 - as above

        given: list[dict[str, Any]] = [{"command": command} for command in commands]
        given = given or [{"argv": argv} if argv else {"call": call, "kwargs": kwargs}]
        code = push_given(how, named_tasks(template, given, id_, own))
    echo.check()
    return code
