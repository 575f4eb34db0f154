"""`jobq run`: options into settings and an input; what is done with them is in `localrun/one_run.py`."""

import os
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli import completions
from jobq.cli.common import Invocation, ProgramCommand, duration, program_of, read_settings, run_async
from jobq.cli.display import terminal
from jobq.cli.submit.arguments import arguments_of, lists_in, show_all, slots_of, take_lists
from jobq.cli.submit.push_options import CPUS, GPUS, MEM
from jobq.cli.submit.sweep import EACH, GRID, show_first, sweep_of
from jobq.cli.worker_options import BACKOFF, LOAD, MEMFREE, MEMORY_LIMIT, NUM_WORKERS, STOP_GRACE, VIEW
from jobq.errors import JobqError

if TYPE_CHECKING:
    from jobq.cli.localrun.input_feed import RunInput
    from jobq.cli.localrun.job_handling import JobHandling
    from jobq.settings import Settings
    from jobq.submit.record_tasks import RecordTasks

_HELP: Final = """Run commands here and now, several at a time, until all are done; as `xargs -P` and GNU parallel do,
with jobq's supervision: process trees end whole, with a time limit, a memory limit, and with this command.

FILE (`-` or nothing = standard input) is read as `jobq QUEUE push` reads it: each line is a command for the shell or a
JSON object; blank lines and lines that begin with # are skipped. Work begins with the first line. Commands find
/dev/null as their standard input; their output comes out line by line, as text.

With a command of your own, behind `--` or as -c, there is no FILE, but lists of arguments: words behind `:::`, the
lines of files behind `::::`, else the lines of standard input. Several lists make each combination; `:::+` and
`::::+` go in step with the list before. Behind `--` the fields {} {.} {/} {//} {/.} {1} {2.} are filled in as
GNU parallel has them, each within its word and without a shell: a value is never code. A -c stays as it is, and finds
"$ARG_1", "$ARG_2", "$@", $ARG_SEQ and $JOBQ_SLOT.

With --cpus, --gpus or --mem each job takes so much of this machine, and as many run at once as fit (-n bounds them):
`--gpus 1` gives each a card of its own, which it finds in CUDA_VISIBLE_DEVICES.

With --grid or --each there is no FILE, but one command, as a template: {name} is filled in within the words after `--`,
without a shell; a -c stays as it is, and finds "$PARAM_name". {index} counts the points from 0.

The queue is a temporary file. With --queue-file it stays, and after an interruption --resume goes on: give FILE again
when it had not been read to its end. A line is known by its number and its text, so what is done is not done again,
and lines may be appended to FILE. What an interrupted run still held starts again, at the latest when its lease runs
out (1 minute after a SIGKILL; at once after Ctrl-C).

Ctrl-C and SIGTERM: running commands are asked to end, killed after --stop-grace; twice Ctrl-C: at once. SIGUSR1:
finish what runs, begin nothing new.

Exit codes: 0 all succeeded, 1 some failed or were not run, 2 usage or bad input, 4 nothing to resume, 130 and
143 interrupted with work left.
"""
_EXAMPLES: Final = (
    "jobq run -n 8 < commands.txt",
    "seq 100 | sed 's/^/echo line /' | jobq run -n 4 --joblog jobs.tsv",
    "jobq run -j 8 -- gzip -9 {} ::: *.log",
    """jobq run -j +0 -c 'sort "$ARG_1" > "${ARG_1%.*}.sorted"' ::: *.txt""",
    "find . -name '*.iso' -print0 | jobq run -j 4 -k -0 -- sha256sum",
    "jobq run --gpus 1 -- python train.py --config {} ::: *.yaml",
    "jobq run -j 8 -k --halt soon,fail=3 -- ./simulate {1} {2} ::: 0.1 0.2 ::: 1 2 3",
    "jobq run -n 8 --grid lr=0.1,0.01 --grid seed=01..05 -- python train.py --lr={lr} --seed {seed}",
    """jobq run -n 8 --each runs.csv -c 'python train.py --lr "$PARAM_lr" | tee "run-$PARAM_index.log"'""",
    "jobq run -n 8 --timeout 10m --memory-limit 2G --num-retries 2 commands.txt",
    "jobq run -n 8 --queue-file jobs.db commands.txt           # interrupted ...",
    "jobq run -n 8 --queue-file jobs.db --resume               # ... goes on",
    "jobq run -n 8 --queue-file jobs.db --resume-failed        # runs the failed ones again",
)
_FOREVER: Final = timedelta(days=36_500)  # an empty queue is watched as long as the input lasts


_OFFERED: Final = {"cpus": "offer_cpus", "gpus": "offer_gpus", "mem": "offer_memory"}
_SHORT: Final = {"keep_order": "-k", "group": "--group", "num_workers": "-n", "jobs": "-j"}
_EXCLUSIVE: Final = (("keep_order", "group"), ("num_workers", "jobs"))
_FROM_WHERE: Final = "commands come from a FILE or a pipe, as in: echo 'echo hello' | jobq run"


class _RunCommand(ProgramCommand):
    """Says where commands come from to who gives one."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the shape of a command line."""
        return ["[OPTIONS]", "[FILE | [--grid ...] [--each ...] [-c COMMAND | -- PROGRAM [ARGS]...] [::: ARGS]...]"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options and FILE."""
        try:
            return super().parse_args(ctx, take_lists(ctx, args))
        except click.UsageError as error:
            if "unexpected extra" in error.message:
                raise click.UsageError(f"{error.message.rstrip('.')}; {_FROM_WHERE}", ctx) from None
            raise


@click.command(cls=_RunCommand, help=_HELP, examples=_EXAMPLES)
@click.argument("file", required=False, shell_complete=completions.files)
@GRID
@EACH
@click.option("-c", "--command", metavar="COMMAND", help='A command for the shell, with "$ARG_1" or "$PARAM_name".')
@click.option("-0", "--null", is_flag=True, help="The values of files and of standard input end with a NUL.")
@click.option(
    "-N", "--max-args", metavar="N", type=click.IntRange(1, 10_000), default=1,
    help="Give each job so many values of the list. Default: 1.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the commands (of --grid and --each the first three); run nothing.")
@click.option("-j", "--jobs", metavar="JOBS", help="As -n; or +0 for one on each processor, 50% for half of that.")
@click.option("-k", "--keep-order", is_flag=True, help="Print what jobs print in the order of the input.")
@click.option("--group", is_flag=True, help="Print what a job prints together, once it has ended.")
@click.option(
    "--halt", metavar="WHEN,WHY=N", default="never",
    help="End early: soon or now, at fail=N, success=N or done=N. Default: never.",
)  # fmt: skip
@CPUS
@GPUS
@MEM
@LOAD
@MEMFREE
@NUM_WORKERS
@click.option("--queue-file", metavar="PATH", help="Keep the queue in this file. Default: a temporary one.")
@click.option("--resume", is_flag=True, help="Go on with what --queue-file holds; begin it when there is nothing yet.")
@click.option("--resume-failed", is_flag=True, help="As --resume, and run what failed again, with fresh budgets.")
@click.option(
    "--joblog", metavar="FILE",
    help="Write a line for each finished command: line, host, start, seconds, exit code, signal, command. Appended to"
    " with --resume.",
)  # fmt: skip
@click.option("--num-retries", metavar="N", type=click.IntRange(min=0), help="Runs after a failure. Default: 0.")
@BACKOFF
@click.option("--timeout", metavar="DURATION", callback=duration, help="How long a command may run. Default: no limit.")
@MEMORY_LIMIT
@STOP_GRACE
@click.option(
    "--max-consecutive-failures", metavar="N", type=click.IntRange(min=0),
    help="End after so many failures in a row; 0 = never. Default: 0.",
)  # fmt: skip
@VIEW
@click.option("--quiet-output", is_flag=True, help="Do not print what commands print.")
@click.option(
    "--json", "as_json", is_flag=True,
    help="Print a summary as one JSON object; what commands print then goes to standard error.",
)  # fmt: skip
@click.pass_context
def run(
    ctx: click.Context,
    /,
    file: str | None,
    grids: tuple[str, ...],
    each: str | None,
    command: str | None,
    dry_run: bool,
    queue_file: str | None,
    resume: bool,
    resume_failed: bool,
    joblog: str | None,
    timeout: timedelta | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Run a file of commands; see _HELP."""
    resume = resume or resume_failed
    _check(ctx, queue_file, options, resume=resume, resume_failed=resume_failed)
    program, lists = program_of(ctx), lists_in(ctx)
    form = {name: options.pop(name) for name in ("null", "max_args")}
    is_sweep = bool(grids) or each is not None
    is_list = not is_sweep and (bool(lists) or program is not None or command is not None)
    _check_source(file, form, is_sweep=is_sweep, is_list=is_list, dry_run=dry_run, has_lists=bool(lists))
    handling = _handling(options)
    asked = {name: given for name in ("cpus", "gpus", "mem") if (given := options.pop(name)) is not None}
    settings = _settings(asked, **options)
    from jobq.cli.localrun.one_run import OneRun, options_of  # noqa: PLC0415 - `jobq run --help` needs none of it
    from jobq.run.spawn.choose_spawner import below_guardian  # noqa: PLC0415 - as above

    task_options = options_of(settings, timeout, queue_file, asked)
    source: RunInput | None = None
    if not dry_run:
        settings = below_guardian(sys.argv[1:], settings)  # before anything is read: what is read is lost then
    if is_list:
        jobs = arguments_of(lists, command, program, **form)
        if dry_run:
            return run_async(show_all(jobs, task_options, as_json=as_json))
        source = jobs
    elif is_sweep:
        tasks = sweep_of(ctx, grids, each, (command,) if command is not None else (), program, task_options)
        if dry_run:
            return run_async(show_first(tasks, as_json=as_json))
        source = _points(tasks, grids, each, command, program)
    elif (path := _file_of(file, resume=resume)) is not None:
        source = _lines(ctx, path)
    again = ["jobq", "run", "--resume", *(("--queue-file", queue_file) if queue_file else ())]
    again += ["-n", str(settings.num_workers)] if settings.num_workers > 1 else []
    again += [word for name, given in asked.items() for word in (f"--{name}", given)]
    again += ["--joblog", joblog] if joblog else []
    one = OneRun(
        settings,
        source,
        task_options,
        queue_file=queue_file,
        joblog=joblog,
        again=shlex.join(again),
        handling=handling,
        echo="nowhere" if settings.quiet_output else "stderr" if as_json else "stdout",
    )
    work = one.work(resume=resume, resume_failed=resume_failed, as_json=as_json)
    return run_async(work, settings.event_loop)


def _check(
    ctx: click.Context, queue_file: str | None, options: dict[str, Any], *, resume: bool, resume_failed: bool
) -> None:
    """Raise UsageError for options that do not go together."""
    invocation = ctx.find_object(Invocation)
    if invocation is not None and invocation.spec is not None:
        raise click.UsageError(
            "run has a queue of its own: write `jobq run ...`, or `jobq QUEUE push` and `jobq QUEUE worker`"
        )
    if resume and queue_file is None:
        given = "--resume-failed" if resume_failed else "--resume"
        raise click.UsageError(f"{given} needs --queue-file, the file that the interrupted run was given")
    if resume and options["keep_order"]:
        raise click.UsageError("-k prints in the order of all the input, of which --resume runs a part; use --group")
    for one, other in _EXCLUSIVE:
        if options[one] and options[other]:
            raise click.UsageError(f"{_SHORT[one]} and {_SHORT[other]} exclude each other")


def _check_source(
    file: str | None, form: dict[str, Any], *, is_sweep: bool, is_list: bool, dry_run: bool, has_lists: bool
) -> None:
    """Raise UsageError unless the jobs come from one place."""
    if is_sweep and has_lists:
        raise click.UsageError("--grid and --each name their values; lists behind ::: do not go with them")
    if is_sweep and file is not None:
        raise click.UsageError("--grid and --each fill in one command; a FILE of commands does not go with them")
    if is_list and file is not None:
        raise click.UsageError(f"a FILE of commands does not go with one command; for a FILE of arguments: :::: {file}")
    if not is_list and form != {"null": False, "max_args": 1}:
        raise click.UsageError("-0 and -N are for lists of arguments, with a command behind `--` or as -c")
    if dry_run and not (is_sweep or is_list):
        raise click.UsageError("--dry-run goes with one command; a FILE says itself what would be run")


def _handling(options: dict[str, Any]) -> "JobHandling":
    """Take the options of what is done with jobs from all options; raises UsageError."""
    from jobq.cli.localrun.halting import Halt  # noqa: PLC0415 - `jobq run --help` needs none of it
    from jobq.cli.localrun.job_handling import JobHandling  # noqa: PLC0415 - as above

    if (jobs := options.pop("jobs")) is not None:
        options["num_workers"] = slots_of(jobs)
    try:
        halt = Halt.of(options.pop("halt"))
    except ValueError as error:
        raise click.UsageError(f"--halt {error}") from None
    in_order, group = options.pop("keep_order"), options.pop("group")
    return JobHandling(output="order" if in_order else "group" if group else "lines", halt=halt)


def _file_of(file: str | None, *, resume: bool) -> str | None:
    """Return the file of commands, None where nothing is read; raises UsageError where nothing is to be read."""
    if terminal.has_terminal_input():
        if file == "-" or (file is None and not resume):
            raise click.UsageError("nothing to run: give a FILE of commands or pipe them; a terminal is not read")
        return file
    return file or "-"


def _lines(ctx: click.Context, path: str) -> "RunInput":
    from jobq.cli.localrun.input_feed import LineInput  # noqa: PLC0415 - `jobq run --help` needs none of it
    from jobq.submit.input_lines import Input  # noqa: PLC0415 - as above

    try:
        return LineInput(ctx.with_resource(Input(path)))
    except JobqError as error:
        if not Path(path).exists():
            error.add_note(_FROM_WHERE)
        raise


def _points(
    tasks: "RecordTasks",
    grids: tuple[str, ...],
    each: str | None,
    command: str | None,
    program: tuple[str, ...] | None,
) -> "RunInput":
    from jobq.cli.localrun.input_feed import PointInput  # noqa: PLC0415 - `jobq run --help` needs none of it

    again = [word for text in grids for word in ("--grid", text)]
    again += ["--each", each] if each is not None else []
    again += ["-c", command] if command is not None else ["--", *(program or ())]
    return PointInput(tasks, again)


def _settings(asked: dict[str, str], **options: Any) -> "Settings":
    from jobq.settings import AUTO_SLOTS, variable_of  # noqa: PLC0415 - `jobq run --help` needs none of it

    settings = read_settings(**{**options, "quiet_output": options.get("quiet_output") or None})
    # The person in front of it sees what fails, and decides: nothing is repeated, nothing ends early by itself.
    own: dict[str, Any] = {
        name: 0
        for name in ("num_retries", "max_consecutive_failures")
        if not (options.get(name) is not None or os.environ.get(variable_of(name)))
    }
    offers = {_OFFERED[name]: ("auto",) if name == "gpus" else "auto" for name in asked}
    own |= {name: auto for name, auto in offers.items() if getattr(settings, name) is None}
    if asked and options["num_workers"] is None and not os.environ.get(variable_of("num_workers")):
        own["num_workers"] = AUTO_SLOTS
    return settings.copied({**own, "idle_timeout": _FOREVER, "time_limit": None, "restart": 0})
