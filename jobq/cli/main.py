"""The entry point: which queue, which command, and what becomes of an error (architecture 3 and 12)."""

import errno
import os
import re
import signal
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from jobq import __version__
from jobq.cli.common import Invocation, SuggestingGroup
from jobq.cli.display import queue_name, terminal
from jobq.cli.interrupts import Interrupted
from jobq.errors import ConfigurationError, JobqError, PushUnknown

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Each command with the module that holds it: imported when it is used, so that `jobq --help` stays quick.
_COMMANDS: Final = {
    "Run": {
        "push": ("jobq.cli.commands.push", "Queue commands."),
        "fanout": ("jobq.cli.commands.fanout", "Queue one task for each row, line or blob."),
        "worker": ("jobq.cli.commands.worker", "Run what is queued."),
        "run": ("jobq.cli.commands.run", "Run a file of commands here until all are done."),
        "batch": ("jobq.cli.commands.batch", "Look after what was pushed under one name."),
        "lease": ("jobq.cli.commands.lease", "Run a command that is alone in holding a name; list who holds what."),
    },
    "Inside of a task": {
        "checkpoint": ("jobq.cli.commands.task", "Save how far it is; its next attempt finds it."),
        "progress": ("jobq.cli.commands.task", "Report how far it is, for `ps`."),
    },
    "Look": {
        "queues": ("jobq.cli.commands.queue", "List the queues of this machine."),
        "size": ("jobq.cli.commands.queue", "Count the tasks."),
        "peek": ("jobq.cli.commands.queue", "Show the next tasks without taking them."),
        "status": ("jobq.cli.commands.status", "Show where tasks are, and what they came to."),
        "top": ("jobq.cli.commands.top", "Watch a queue: counts, rates, what runs."),
        "ui": ("jobq.cli.commands.ui", "Look at queues in a browser."),
        "ps": ("jobq.cli.commands.status", "Show what runs, where, and how far it is."),
        "logs": ("jobq.cli.commands.logs", "Show what a task has printed."),
        "stats": ("jobq.cli.commands.status", "Count by state, and what ended lately."),
        "results": ("jobq.cli.commands.results", "Write a table of what a batch came to."),
        "dead": ("jobq.cli.commands.dead", "List, show, retry or purge dead letters."),
        "help": ("jobq.cli.commands.help", "Explain a command, an error or a topic."),
    },
    "Manage": {
        "check": ("jobq.cli.commands.check", "Find what is wrong with a queue, or its service."),
        "create": ("jobq.cli.commands.queue", "Make the queue; a first push does it too."),
        "cancel": ("jobq.cli.commands.cancel", "End tasks that wait, stop those that run."),
        "clear": ("jobq.cli.commands.queue", "Delete all tasks but dead letters."),
        "pause": ("jobq.cli.commands.pause", "Hand out nothing new; what runs goes on."),
        "resume": ("jobq.cli.commands.pause", "Hand tasks out again."),
        "delete": ("jobq.cli.commands.queue", "Delete the queue itself."),
        "serve": ("jobq.cli.commands.serve", "Serve queues over HTTP; make tokens for it."),
        "keys": ("jobq.cli.commands.keys", "Make keys that sign tasks; list, trust and revoke them."),
        "completion": ("jobq.cli.commands.completion", "Print the completion script of a shell."),
        "healthcheck": ("jobq.cli.commands.healthcheck", "Check whether this container's worker is alive."),
        "config": ("jobq.cli.commands.config", "Show each setting, its value and where that came from."),
    },
}
_MODULE_OF: Final = {name: module for group in _COMMANDS.values() for name, (module, _) in group.items()}
_LASTING: Final = frozenset({"worker", "run", "lease", "serve", "ui", "check"})  # with more to close
_OF_ALL: Final = frozenset({"-h", "--help", "-q", "--quiet", "-v", "--verbose", "--version"})
_PLAIN_SPEC: Final = re.compile(r"[A-Za-z0-9._:/-]+")  # holds no password: that would stand before an @
_CAPITAL: Final = re.compile(r"(?<!^)([A-Z])")
_UNWRITABLE: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_INTERRUPTED: Final = 130
_USAGE: Final = 2
_COMPLETION: Final = "_JOBQ_COMPLETE"

_HELP: Final = """Run commands that matter on machines that vanish.

QUEUE is a name (an embedded queue of this machine), ACCOUNT/QUEUE (Azure Storage Queue) or a URL such as
sqlite:///data/jobs.db/demo. Without it the variable JOBQ_QUEUE is used.
"""
_EXAMPLES: Final = (
    "jobq demo push -c 'echo hello'       # queue a command",
    "jobq demo push tasks.txt             # queue one command per line",
    "jobq demo worker -n 4                # run them, four at a time",
    "jobq demo dead list                  # what failed too often",
    "jobq run -n 4 < tasks.txt            # all of it at once: run a file here, as xargs does",
)
_EPILOG: Final = """`jobq QUEUE COMMAND --help` says more, and
`jobq help topics` what there is to read. A queue that is named like a command needs JOBQ_QUEUE.

Exit codes: 0 done, 1 failed, 2 usage, 3 configuration or access, 4 not found or empty, 75 try again later,
130 and 143 interrupted."""


class Commands(SuggestingGroup):
    """`jobq [QUEUE] COMMAND`: a first positional argument that is no command is the queue."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the queue out of the arguments, which click has no notion of."""
        invocation = ctx.ensure_object(Invocation)
        ctx.info_name = "jobq [QUEUE]"
        args = _asked_for_help(args)
        first = next((index for index, word in enumerate(args) if not word.startswith("-")), None)
        if first is not None and args[first] not in _MODULE_OF:
            invocation.spec = args[first]
            queue_name.set_queue(invocation.spec)
            ctx.info_name = f"jobq {_shown(args[first])}"
            args = [*args[:first], *args[first + 1 :]]
            args = _asked_for_help(args)
            is_odd = args and args[0] not in _MODULE_OF and args[0].startswith("-") and args[0] not in _OF_ALL
            if is_odd and (meant := self.suggestion(ctx, invocation.spec)):
                raise click.UsageError(f"no such command {_shown(invocation.spec)!r}{meant}", ctx)
        if not args and not ctx.resilient_parsing:
            if invocation.spec is not None:
                raise click.UsageError(_missing_command(invocation.spec), ctx)
            click.echo(ctx.get_help(), err=True)
            ctx.exit(_USAGE)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return what may stand here: commands, and before them the queues of this machine."""
        from jobq.cli.completions import queues  # noqa: PLC0415 - never needed otherwise

        is_first = ctx.ensure_object(Invocation).spec is None
        return super().shell_complete(ctx, incomplete) + (queues(incomplete) if is_first else [])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the shape of a command line."""
        return ["COMMAND", "[ARGS]..."]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return list(_MODULE_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command's module and return the command."""
        if cmd_name not in _MODULE_OF:
            return None
        command = getattr(import_module(_MODULE_OF[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the commands in groups, without importing any."""
        for title, commands in _COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()], col_max=12)


def _asked_for_help(args: list[str]) -> list[str]:
    """Have `help COMMAND` be `COMMAND --help`; another word is a topic, for the command `help`."""
    if args[:1] == ["help"] and (len(args) == 1 or args[1] in _MODULE_OF):
        return [*args[1:], "--help"]
    return args


def _shown(spec: str) -> str:
    """Return the spec for a usage message, which comes before anyone has looked for a password in it (A5)."""
    return spec if _PLAIN_SPEC.fullmatch(spec) else "QUEUE"


def _missing_command(spec: str) -> str:
    meant = "; did you mean 'queues'?" if spec in {"ls", "list"} else cli.suggestion(click.Context(cli), spec)
    return f"no command after {_shown(spec)!r}, which is taken for the queue{meant}"


@click.command(
    cls=Commands,
    help=_HELP,
    examples=_EXAMPLES,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="jobq", message="%(prog)s %(version)s")
def cli() -> None:
    """Hold the commands; the queue is taken by `Commands.parse_args`."""


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    code = run(sys.argv[1:])
    if sys.flags.inspect or (threading.active_count() == 1 and not _LASTING.intersection(sys.argv)):
        # All that was opened is closed: to take the interpreter apart is a sixth of a short command. With PYTHONINSPECT
        # it would print the exit as a traceback, and open a prompt.
        with suppress(OSError, ValueError):  # nobody reads it; said already
            sys.stdout.flush()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; errors are printed, never raised."""
    terminal.prepare_streams()
    terminal.set_verbosity(terminal.Verbosity.NORMAL)
    queue_name.set_queue(None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    as_json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
    try:
        code = _run(arguments, as_json)
        terminal.flush()
    except terminal.OutputGone as gone:
        return _output_gone(gone)
    except (KeyboardInterrupt, click.Abort):
        terminal.complain("interrupted")
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: whatever comes here is ours to mend
        if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
            return _output_gone(terminal.OutputGone(error))  # from click, which prints help and version by itself
        traceback.print_exc()
        terminal.complain("this is a bug in jobq; please report it with the lines above")
        return 1
    return code


def _run(arguments: list[str], as_json: bool) -> int:
    try:
        _refuse_platform()
        return _invoke(arguments)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        return _say_usage(error, as_json)
    except JobqError as error:
        return _say_error(error, as_json)
    except Interrupted as error:
        message = "; ".join(filter(None, ["interrupted", str(error)]))
        return terminal.fail("Interrupted", message, error.exit_code, as_json=as_json, ids=list(error.ids))


def _output_gone(gone: terminal.OutputGone) -> int:
    terminal.discard_stdout()
    if not gone.is_fault:  # the reader of our output has seen enough, as in `| head -1`
        return 0
    terminal.complain(str(gone))
    return 1


def _refuse_platform() -> None:
    if sys.platform == "win32":
        raise ConfigurationError("Windows is not supported: jobq needs POSIX process groups and signals; use WSL 2")


def _invoke(arguments: list[str]) -> int:
    if instruction := os.environ.get(_COMPLETION):  # how shells ask click for completions
        from click.shell_completion import shell_complete  # noqa: PLC0415 - never needed otherwise

        return shell_complete(cli, {}, "jobq", _COMPLETION, instruction)
    with cli.make_context("jobq", list(arguments)) as context:
        code: Any = cli.invoke(context)
        return code if isinstance(code, int) else 0


def _say_usage(error: click.ClickException, as_json: bool) -> int:
    code = _USAGE if isinstance(error, click.UsageError) else error.exit_code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group alone: its message is its help
        click.echo(error.format_message(), err=True)
        return code
    message = error.format_message()
    if isinstance(error, click.MissingParameter) and error.ctx is not None and error.ctx.info_name == "status":
        message += " `size`, `stats` and `ps` are about the whole queue."
    if isinstance(error, click.MissingParameter):  # click lists choices on lines of their own; a message is one line
        message = " ".join(message.split())
    if as_json:
        return terminal.fail("UsageError", message, code, as_json=True)
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"Try: {context.command_path.replace(' [QUEUE]', '')} --help" if context else ""
    terminal.complain(message, hint=hint)
    return code


def _say_error(error: JobqError, as_json: bool) -> int:
    notes = getattr(error, "__notes__", [])
    message = "; ".join([str(error), *notes])
    more = {"ids": list(error.ids)} if isinstance(error, PushUnknown) else {}
    topic = _CAPITAL.sub(r"-\1", type(error).__name__).lower() if type(error).__module__ == JobqError.__module__ else ""
    return terminal.fail(type(error).__name__, message, error.exit_code, as_json=as_json, topic=topic, **more)
