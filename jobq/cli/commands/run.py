"""`jobq run`: options into settings, a queue and an input; the work is in `local_run`, what it keeps in `run_store`."""

import os
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli import completions
from jobq.cli.common import ExampleCommand, Invocation, duration, read_settings, run_async
from jobq.cli.display import terminal
from jobq.cli.worker_options import BACKOFF, MEMORY_LIMIT, NUM_WORKERS, STOP_GRACE, VIEW
from jobq.errors import JobqError
from jobq.formats import durations

if TYPE_CHECKING:
    from jobq.cli.localrun.local_run import LocalRun
    from jobq.settings import Settings
    from jobq.submit.input_lines import Input

_HELP: Final = """Run a file of commands here and now, several at a time, until all are done; as `xargs -P` and GNU
parallel do, with jobq's supervision: process trees end whole, with a time limit, a memory limit, and with this command.

FILE (`-` or nothing = standard input) is read as `jobq QUEUE push` reads it: each line is a command for the shell or a
JSON object; blank lines and lines that begin with # are skipped. Work begins with the first line. Commands find
/dev/null as their standard input; their output comes out line by line, as text.

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
    "jobq run -n 8 --timeout 10m --memory-limit 2G --num-retries 2 commands.txt",
    "jobq run -n 8 --queue-file jobs.db commands.txt           # interrupted ...",
    "jobq run -n 8 --queue-file jobs.db --resume               # ... goes on",
    "jobq run -n 8 --queue-file jobs.db --resume-failed        # runs the failed ones again",
)
_FOREVER: Final = timedelta(days=36_500)  # an empty queue is watched as long as the input lasts


_FROM_WHERE: Final = "commands come from a FILE or a pipe, as in: echo 'echo hello' | jobq run"


class _RunCommand(ExampleCommand):
    """Says where commands come from to who gives one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options and FILE."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            is_command = isinstance(error, click.NoSuchOption) and error.option_name in ("-c", "--command")
            if is_command or "unexpected extra" in error.message:
                raise click.UsageError(f"{error.message.rstrip('.')}; {_FROM_WHERE}", ctx) from None
            raise


@click.command(cls=_RunCommand, help=_HELP, examples=_EXAMPLES)
@click.argument("file", required=False, shell_complete=completions.files)
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
    queue_file: str | None,
    resume: bool,
    resume_failed: bool,
    joblog: str | None,
    timeout: timedelta | None,
    quiet_output: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run a file of commands; see _HELP."""
    invocation = ctx.find_object(Invocation)
    if invocation is not None and invocation.spec is not None:
        raise click.UsageError(
            "run has a queue of its own: write `jobq run ...`, or `jobq QUEUE push` and `jobq QUEUE worker`"
        )
    resume = resume or resume_failed
    if resume and queue_file is None:
        given = "--resume-failed" if resume_failed else "--resume"
        raise click.UsageError(f"{given} needs --queue-file, the file that the interrupted run was given")
    if terminal.has_terminal_input() and (file == "-" or (file is None and not resume)):
        raise click.UsageError("nothing to run: give a FILE of commands or pipe them; a terminal is not read")
    reads_input = file is not None or not terminal.has_terminal_input()
    settings = _settings(quiet_output=quiet_output or None, **options)
    from jobq.run.spawn.choose_spawner import below_guardian  # noqa: PLC0415 - `jobq run --help` needs none of it

    settings = below_guardian(sys.argv[1:], settings)  # before anything is read: what is read is lost then
    again = ["jobq", "run", "--resume", *(("--queue-file", queue_file) if queue_file else ())]
    again += ["-n", str(settings.num_workers)] if settings.num_workers > 1 else []
    again += ["--joblog", joblog] if joblog else []
    echo = "nowhere" if settings.quiet_output else "stderr" if as_json else "stdout"
    one = _Run(settings, file or "-" if reads_input else None, queue_file, joblog, shlex.join(again), echo, timeout)
    work = one.work(resume=resume, resume_failed=resume_failed, as_json=as_json)
    return run_async(work, settings.event_loop)


def _settings(**options: Any) -> "Settings":
    from jobq.settings import variable_of  # noqa: PLC0415 - `jobq run --help` needs none of it

    settings = read_settings(**options)
    # The person in front of it sees what fails, and decides: nothing is repeated, nothing ends early by itself.
    own = {
        name: 0
        for name in ("num_retries", "max_consecutive_failures")
        if not (options.get(name) is not None or os.environ.get(variable_of(name)))
    }
    return settings.copied({**own, "idle_timeout": _FOREVER, "time_limit": None, "restart": 0})


class _Run:
    """One `jobq run`, from its options to its exit code."""

    def __init__(
        self,
        settings: "Settings",
        source: str | None,
        queue_file: str | None,
        joblog: str | None,
        again: str,
        echo: Any,
        timeout: timedelta | None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._queue_file = Path(queue_file) if queue_file else None
        self._joblog = Path(joblog) if joblog else None
        self._again = again
        self._echo = echo
        self._timeout = timeout

    async def work(self, *, resume: bool, resume_failed: bool, as_json: bool) -> int:
        """Do it and say how it went."""
        from jobq.cli.display import live_view  # noqa: PLC0415 - `jobq run --help` needs none of it
        from jobq.cli.display.passthrough_log import PassthroughLog  # noqa: PLC0415 - as above
        from jobq.cli.localrun.input_feed import Feed  # noqa: PLC0415 - as above
        from jobq.cli.localrun.joblog import JobLog, check_place  # noqa: PLC0415 - as above
        from jobq.cli.localrun.local_run import LocalRun  # noqa: PLC0415 - as above
        from jobq.cli.localrun.run_store import NamedRun, temporary_queue  # noqa: PLC0415 - as above
        from jobq.events import Events  # noqa: PLC0415 - as above
        from jobq.telemetry.push_tracing import traced_push  # noqa: PLC0415 - as above
        from jobq.telemetry.setup import traced  # noqa: PLC0415 - as above

        began = time.monotonic()
        async with AsyncExitStack() as stack:
            source = stack.enter_context(_opened(self._source)) if self._source is not None else None
            named = NamedRun(self._queue_file, self._settings) if self._queue_file is not None else None
            if self._joblog is not None:
                check_place(self._joblog, self._source, named)
            entered = (
                temporary_queue(self._settings)
                if named is None
                else named.opened(
                    resume=resume,
                    reads_input=source is not None,
                    may_begin=partial(_may_begin, source, resume=resume, resume_failed=resume_failed),
                    again=self._again,
                )
            )
            backend = await stack.enter_async_context(entered)
            joblog = stack.enter_context(JobLog(self._joblog, append=resume) if self._joblog else nullcontext())
            if resume_failed:
                while dead := await backend.dead_letters(500):
                    await backend.redrive([letter.id for letter in dead])
            feed = None
            if source is not None:
                on_end = None if named is None else named.input_is_queued
                context = stack.enter_context(traced_push(backend.name, "sqlite", self._settings.telemetry))
                feed = Feed(backend, source, self._template(context), keeps_known=resume, on_end=on_end)
            here = LocalRun(backend, self._settings, feed, joblog)
            is_live = not as_json and live_view.is_wanted(self._settings.view)
            with PassthroughLog(echo=self._echo, is_live=is_live) as screen:
                events = Events(screen.on_event)
                with traced(events, self._settings, backend.name, "sqlite") as adapt:
                    await here.run(screen, events, adapt)
        if feed is not None and feed.kept:
            terminal.warn(
                f"{feed.kept} lines were queued before with other options or content; they stay as they were then"
            )
        exit_code = here.exit_code or int(screen.lost_output)
        self._say(here, time.monotonic() - began)
        return terminal.put_report([_summary(here, time.monotonic() - began)], exit_code) if as_json else exit_code

    def _template(self, trace_context: Mapping[str, str]) -> Any:
        from jobq.submit.input_lines import TaskOptions, budgets_of  # noqa: PLC0415 - as above

        settings = self._settings
        return TaskOptions(
            timeout=self._timeout.total_seconds() if self._timeout is not None else None,
            trace_context=trace_context,
            cwd=str(Path.cwd()) if self._queue_file is not None else None,  # it may be resumed from elsewhere
            budgets=budgets_of(settings),
        )

    def _say(self, here: "LocalRun", seconds: float) -> None:
        for task in here.failures:
            where = f"line {task.line}" if task.line else f"task {task.id}"
            terminal.say(f"failed: {where} ({task.detail}): {terminal.shortened(task.command, 200)}", is_error=True)
            if task.last_line:
                terminal.say(f"        {terminal.shortened(task.last_line, 200)}", is_error=True)
        if here.failed > len(here.failures):
            terminal.say(f"        ... and {here.failed - len(here.failures)} more", is_error=True)
        counts = [f"{here.done} done", f"{here.failed} failed"]
        counts += [f"{here.failed_earlier} failed earlier (--resume-failed)"] if here.failed_earlier else []
        counts += [f"{here.left} left"] if here.left else []
        kept = f"; the queue is kept: sqlite://{self._queue_file}/run" if self._queue_file is not None else ""
        terminal.say(f"{', '.join(counts)} in {durations.show(round(seconds, 1))}{kept}")
        resume = self._how_to_resume(here)
        if here.error is not None:
            terminal.complain(str(here.error))
        if resume is not None:
            terminal.say(resume, is_error=True)

    def _how_to_resume(self, here: "LocalRun") -> str | None:
        if not here.left and here.input_is_queued:
            return None
        if self._queue_file is None:
            return "what is left went with the temporary queue; with --queue-file PATH it could be resumed"
        file = (
            "" if here.input_is_queued else " < FILE" if self._source == "-" else f" {shlex.quote(self._source or '')}"
        )
        return f"go on with: {self._again}{file}"


def _opened(path: str) -> "Input":
    from jobq.submit.input_lines import Input  # noqa: PLC0415 - `jobq run --help` needs none of it

    try:
        return Input(path)
    except JobqError as error:
        if not Path(path).exists():
            error.add_note(_FROM_WHERE)
        raise


async def _may_begin(source: "Input | None", *, resume: bool, resume_failed: bool) -> bool:
    """Return whether a queue file that holds no run yet is no mistyped one."""
    if resume_failed or source is None:
        return False
    return not resume or source.path != "-" or not await source.is_empty()


def _summary(here: "LocalRun", seconds: float) -> dict[str, Any]:
    return {
        "done": here.done, "failed": here.failed, "failed_earlier": here.failed_earlier, "left": here.left,
        "input_is_queued": here.input_is_queued, "seconds": round(seconds, 3), "exit_code": here.exit_code,
        "failures": [
            {
                "line": task.line, "id": task.id, "exit_value": task.exit_value, "signal": task.signal,
                "detail": task.detail, "command": task.command, "last_line": task.last_line,
            }
            for task in here.failures
        ],
    }  # fmt: skip
