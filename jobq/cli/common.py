"""The parts that commands are made of: a group that suggests, options that several commands share, the queue."""

import gc
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
from click.core import ParameterSource

from jobq.at_once import AnswersAtOnce, run_at_once
from jobq.cli import interrupts
from jobq.cli.display import queue_name, terminal
from jobq.errors import ConfigurationError
from jobq.formats import durations, sizes
from jobq.formats.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import asyncio

    from jobq.backend import Backend
    from jobq.settings import Settings

T = TypeVar("T")
Loop = Literal["asyncio", "uvloop", "fastest"]
_GARBAGE_AT: Final = 20_000  # objects made and not freed, before the youngest are looked at
LOCAL_SCHEMES: Final = frozenset({"embedded", "sqlite"})  # the queues of this machine
_PROGRAM: Final = "jobq.program"
_SHOWN: Final = 60  # characters of what was given
_OF_NO_QUEUE: Final = frozenset({"completion", "config", "healthcheck", "keys", "queues", "run"})
ONE_WORD: Final = "-c takes a whole command as one word: -c 'echo hello'"
WHICH_QUEUE: Final = "which queue? Write `jobq QUEUE {command} ...`, as in `jobq demo {command}`, or set JOBQ_QUEUE"

# Other queues' words for what jobq has under another name.
_MEANT: Final[dict[str, tuple[str, ...]]] = {
    "abort": ("cancel",),
    "add": ("push",),
    "clear": ("purge",),
    "count": ("size",),
    "delete": ("purge",),
    "drop": ("purge", "delete", "clear", "dead purge"),
    "enqueue": ("push",),
    "errors": ("dead list",),
    "failed": ("dead list",),
    "hold": ("pause",),
    "info": ("size", "stats", "status"),
    "kill": ("cancel",),
    "length": ("size",),
    "list": ("peek", "ps", "dead list"),
    "ls": ("list", "peek"),
    "monitor": ("top",),
    "purge": ("clear", "dead purge", "delete"),
    "redrive": ("retry", "dead retry"),
    "remove": ("purge", "delete", "clear", "dead purge"),
    "requeue": ("retry", "dead retry"),
    "result": ("results", "status"),
    "retry": ("dead retry",),
    "rm": ("purge", "cancel", "delete", "clear", "dead purge"),
    "send": ("push",),
    "show": ("status", "peek", "dead show"),
    "start": ("worker",),
    "stop": ("cancel", "pause"),
    "suspend": ("pause",),
    "unpause": ("resume",),
    "submit": ("push",),
    "tail": ("logs",),
    "watch": ("top",),
    "work": ("worker",),
}


@dataclass
class Invocation:
    """What stands before the command.

    Attributes:
        spec: the first positional argument, unless that was the command.
    """

    spec: str | None = None


class ExampleCommand(click.Command):
    """A command whose help shows examples as they are, before its options.

    Args:
        examples: one command line each.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self._examples = examples
        self.params += _verbosity_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse them; a queue that stands behind its command is one word too many."""
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            if "unexpected extra" not in error.message or not _lacks_queue(ctx):
                raise
            raise click.UsageError(WHICH_QUEUE.format(command=_command_words(ctx)), ctx) from None
        self._refuse_empty(ctx)
        return rest

    def _refuse_empty(self, ctx: click.Context) -> None:
        """Raise UsageError for an option whose value is empty, most often a variable that was not set."""
        for option in self.params:
            name = option.name or ""
            if isinstance(option, click.Option) and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                given = ctx.params.get(name)
                if "" in given if isinstance(given, tuple) else given == "":
                    raise click.BadParameter("it is empty; leave the option out, or say what is meant", ctx, option)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help text and the examples."""
        super().format_help_text(ctx, formatter)
        if self._examples:
            with formatter.section("Examples"):
                for example in self._examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class ProgramCommand(ExampleCommand):
    """A command that may be given a program: it keeps what follows the first `--` apart for `program_of`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what stands before `--`."""
        if "--" in args:
            position = args.index("--")
            ctx.meta[_PROGRAM] = tuple(args[position + 1 :])
            args = args[:position]
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            is_of_a_program = isinstance(error, click.NoSuchOption) or "unexpected extra" in error.message
            if given[:1] in (["-c"], ["--command"]) and "unexpected extra" in error.message:
                raise click.UsageError(f"{error.message.rstrip('.')}; {ONE_WORD}", ctx) from None
            if not is_of_a_program or given[0].startswith("-"):
                raise
            hint = f"a program and its arguments stand behind --, as in: -- {' '.join(given)[:_SHOWN]}"
            raise click.UsageError(f"{error.message.rstrip('.')}; {hint}", ctx) from None


def program_of(ctx: click.Context) -> tuple[str, ...] | None:
    """Return the program and arguments that were given to a ProgramCommand; None = there was no `--`."""
    program: tuple[str, ...] | None = ctx.meta.get(_PROGRAM)
    return program


def _lacks_queue(ctx: click.Context) -> bool:
    """Return whether a command works on a queue, and none is named before it, nor by a variable."""
    from jobq.settings import named_queue  # noqa: PLC0415 - for slips alone

    invocation = ctx.find_object(Invocation)
    is_named = (invocation is not None and invocation.spec is not None) or named_queue(os.environ) is not None
    return not is_named and _command_words(ctx).partition(" ")[0] not in _OF_NO_QUEUE


def _verbosity_options() -> list[click.Parameter]:
    """Return `--quiet` and `--verbose`, which every command has, so that they may stand before its name or after it."""
    text_of = {"quiet": "Only errors and data.", "verbose": "Debug events and logs too."}
    return [
        click.Option([f"-{name[0]}", f"--{name}"], is_flag=True, expose_value=False, callback=_set_verbosity, help=text)
        for name, text in text_of.items()
    ]


def _set_verbosity(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    wanted = terminal.Verbosity[str(parameter.name).upper()]
    if terminal.verbosity() not in (terminal.Verbosity.NORMAL, wanted):
        raise click.UsageError("--quiet and --verbose contradict each other", context)
    terminal.set_verbosity(wanted)


class SuggestingGroup(ExampleCommand, click.Group):
    """A group that names the command you may have meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, or raise a UsageError with a suggestion."""
        name = os.fspath(args[0])
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            raise click.UsageError(f"no such command {name!r}{self.suggestion(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def suggestion(self, ctx: click.Context, name: str) -> str:
        """Return a suggestion to append to a message: a word of the field, or what looks alike; or nothing."""
        known = self.list_commands(ctx)
        meant = [repr(word) for word in _MEANT.get(name, ()) if word.split()[0] in known]
        either = " or ".join(filter(None, [", ".join(meant[:-1]), *meant[-1:]]))
        return f"; did you mean {either}?" if meant else did_you_mean(name, known)


def did_you_mean(word: str, known: list[str]) -> str:
    """Return a suggestion to append to a message, or nothing."""
    from difflib import get_close_matches  # noqa: PLC0415 - for slips alone

    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def duration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> timedelta | None:
    """Read a duration option; a callback for `click.option`."""
    if text is None:
        return None
    try:
        return durations.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def time_limit(context: click.Context, parameter: click.Parameter, text: str | None) -> timedelta | None:
    """Likewise, of more than nothing."""
    limit = duration(context, parameter, text)
    if limit is not None and not limit:
        raise click.BadParameter("must be more than 0; leave it out for no limit")
    return limit


def size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Read an option that is a size in bytes; a callback for `click.option`."""
    if text is None:
        return None
    try:
        return sizes.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`; errors become JSON too (main.py)."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")(command)


def batch_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--batch NAME`: of one batch alone."""
    return click.option("--batch", metavar="NAME", help="Those of this batch alone.")(command)


def full_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--full`, for what is cut on a terminal."""
    return click.option("--full", is_flag=True, help="Cut nothing, however long a command is; only terminals cut.")(
        command
    )


def read_settings(**options: Any) -> "Settings":
    """Return the settings of the environment, with options over them, and warn about variables that nothing reads."""
    from jobq.settings import STORAGE_QUEUE, Settings, unknown_variables  # noqa: PLC0415 - --help must not pay for it

    settings = Settings.from_environment(**options)
    if settings.guardian_fd is None:  # else the same was said before this process became a worker
        for name in unknown_variables(os.environ):
            terminal.warn(f"{name} is no variable of jobq{_instead_of(name)}")
        other = os.environ.get(STORAGE_QUEUE)
        if other and settings.queue != other:
            terminal.warn(f"{STORAGE_QUEUE} is not used: JOBQ_QUEUE goes before it")
    return settings


def _instead_of(variable: str) -> str:
    from jobq.settings import Settings, variable_of  # noqa: PLC0415 - for slips alone

    return did_you_mean(variable, [variable_of(name) for name in Settings.FIELDS])


def spec_of(context: click.Context, settings: "Settings") -> str:
    """Return the queue spec from the command line or JOBQ_QUEUE; raises UsageError when there is none."""
    invocation = context.find_object(Invocation)
    spec = (invocation.spec if invocation else None) or settings.queue
    if not spec:
        from jobq.settings import STORAGE  # noqa: PLC0415 - for slips alone

        hint = f"; {STORAGE} names an account alone" if os.environ.get(STORAGE) else ""
        raise click.UsageError(WHICH_QUEUE.format(command=_command_words(context)) + hint, context)
    if spec.lower().startswith("memory://"):
        raise ConfigurationError(
            "memory:// lives in one process and ends with this command; it is for programs. Name an embedded"
            " queue, such as: demo"
        )
    queue_name.set_queue(spec, is_given=bool(invocation and invocation.spec))
    return spec


def _command_words(context: click.Context) -> str:
    words: list[str] = []
    current: click.Context | None = context
    while current is not None and current.parent is not None:
        words.insert(0, str(current.info_name))
        current = current.parent
    return " ".join(words)


def run_async(work: Coroutine[Any, Any, T], loop: Loop = "asyncio") -> T:
    """Run a command's coroutine as `asyncio.run` does; what was imported for it is no more looked at for garbage.

    Args:
        work: the coroutine.
        loop: on which event loop; fastest = uvloop where it is installed.

    Raises:
        ConfigurationError: uvloop is asked for and not installed.
    """
    import asyncio  # noqa: PLC0415 - `jobq --help` and short commands start without it

    try:
        factory = None if loop == "asyncio" else _uvloop(is_needed=loop == "uvloop")
    except ConfigurationError:
        work.close()
        raise
    gc.freeze()
    gc.set_threshold(_GARBAGE_AT, *gc.get_threshold()[1:])  # what runs on leaves few objects in circles
    gc.enable()  # `jobq.__main__` has disabled it
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def _uvloop(*, is_needed: bool) -> "Callable[[], asyncio.AbstractEventLoop] | None":
    try:
        import uvloop  # noqa: PLC0415 - where it is wanted
    except ModuleNotFoundError as error:
        if not is_needed:
            return None
        raise ConfigurationError(
            "JOBQ_EVENT_LOOP=uvloop needs uvloop; install it with: pip install uvloop, or unset the variable"
        ) from error
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return new_loop


def with_queue(
    context: click.Context,
    work: Callable[["Backend"], Awaitable[int | None]],
    settings: "Settings | None" = None,
    *,
    interruptible: bool = False,
    brief: bool = False,
) -> int:
    """Connect to the queue, do the work and return the exit code.

    Args:
        context: of the command.
        work: what to do.
        settings: those of the environment by default.
        interruptible: whether SIGTERM cancels the work, as Ctrl-C does, so that it can report what it has done; raises
            `Interrupted` then, which the work may raise itself with what there is to report.
        brief: whether it waits for nothing but the queue, so that an embedded one is asked without an event loop.
    """
    from jobq.cli.display.logging_handler import LogRecords  # noqa: PLC0415 - `jobq --help` must not pay for it
    from jobq.spec import parse, resolve  # noqa: PLC0415 - as above

    settings = settings or read_settings()
    spec = spec_of(context, settings)
    is_at_once = brief and parse(spec).scheme in LOCAL_SCHEMES

    async def connected() -> int:
        backend = resolve(spec, settings)
        if is_at_once:
            assert isinstance(backend, AnswersAtOnce)
            backend.without_loop()
        async with backend:
            return await work(backend) or 0

    with LogRecords(terminal.say_record):
        if is_at_once:
            with interrupts.put_off() if interruptible else nullcontext():
                return run_at_once(connected())
        return run_async(interrupts.or_interrupted(connected()) if interruptible else connected())
