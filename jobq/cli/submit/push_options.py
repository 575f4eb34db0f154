"""What the options of `push` mean, which values they take, and which go together."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.cli.common import ONE_WORD
from jobq.cli.display import terminal
from jobq.errors import MalformedTask
from jobq.formats import strict_json

if TYPE_CHECKING:
    from jobq.backend import Backend


def call_of(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """Return the function that is named, as click asks."""
    if text is not None:
        from jobq.task import Task  # noqa: PLC0415 - `jobq push --help` must not pay for it

        try:
            Task.new(call=text)
        except MalformedTask as error:
            raise click.BadParameter(f"{text!r} {error.what}") from None
    return text


def asked_of(_context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """Return what is asked of a machine, as click asks."""
    if given:
        from jobq.task import Task  # noqa: PLC0415 - `jobq push --help` must not pay for it

        try:
            Task.new(command="true", **{str(parameter.name): given})
        except MalformedTask as error:
            raise click.BadParameter(error.what) from None
    return given


CPUS: Final = click.option("--cpus", metavar="N", callback=asked_of, help="Processors that each needs: 4 or 0.5.")
GPUS: Final = click.option("--gpus", metavar="N", callback=asked_of, help="GPUs that each needs.")
MEM: Final = click.option(
    "--mem", metavar="SIZE", callback=asked_of, help="Memory that each needs, and is killed beyond: 512M, 12G."
)
_NEEDS: Final = click.option(
    "--needs",
    metavar="TAG",
    multiple=True,
    callback=asked_of,
    help="A tag that its worker must have (worker --tag); may be repeated, and it must have all.",
)


def asking(command: Any) -> Any:
    """Give a command the options that say what tasks ask of a machine."""
    return CPUS(GPUS(MEM(_NEEDS(command))))


def kwargs_of(_context: click.Context, _parameter: click.Parameter, text: str | None) -> dict[str, Any] | None:
    """Return a JSON object, as click asks."""
    if text is None:
        return None
    try:
        value = strict_json.loads(os.fsencode(text))
    except MalformedTask as error:
        raise click.BadParameter(str(error)) from None
    if not isinstance(value, dict):
        raise click.BadParameter("""must be a JSON object, such as '{"n": 1}'""")
    return value


def check_sources(
    file: str | None,
    commands: tuple[str, ...],
    argv: tuple[str, ...] | None,
    call: str | None,
    spec: str | None,
    id_: str | None,
    *,
    is_sweep: bool,
) -> None:
    """Raise UsageError unless tasks come from exactly one place."""
    if argv == ():
        raise click.UsageError("no program after `--`")
    if is_sweep and (file is not None or call is not None or spec is not None or id_ is not None):
        raise click.UsageError(
            "--grid and --each fill in a -c COMMAND, or a program after `--`; a FILE, --call, --spec and --id do not go"
            " with them (records of a file: --each FILE.csv)"
        )
    places = (file is not None) + bool(commands) + (argv is not None) + (call is not None) + (spec is not None)
    if places > 1:
        if len(commands) == 1 and file is not None and not (call or spec or Path(file).exists()):
            raise click.UsageError(f"cannot read {file}: No such file or directory; {ONE_WORD}")
        raise click.UsageError(
            "tasks come from one place: -c, a FILE, --call, --spec, or a program after `--`; push twice for two"
        )
    if id_ is not None and (len(commands) != 1 and argv is None and call is None):
        raise click.UsageError(
            "--id names one task: give it with one -c, --call or a program; JSON lines have ids of their own"
        )
    if not places and not is_sweep and terminal.has_terminal_input():
        raise click.UsageError(
            "nothing to queue: give -c COMMAND, a FILE, `-` to type or pipe lines, --call FUNCTION, or -- PROGRAM"
        )


def check_batch(name: str | None, *, stays_open: bool, then: Sequence[str]) -> None:
    """Raise UsageError for a name that no batch can have, and for what is about one where there is none."""
    from jobq.formats.task_ids import BATCH  # noqa: PLC0415 - --help must not pay for it

    if name is None and (stays_open or then):
        raise click.UsageError("--open and --then are about a batch: name it with --batch NAME")
    if name is not None and not BATCH.fullmatch(name):
        raise click.UsageError(
            f"--batch: {name!r:.80} is no name of 1 to 64 letters, digits or ._- that begins with a letter or digit"
        )


def check_priority(backend: "Backend", priority: int | None) -> None:
    """Raise UsageError for --priority where the queue's service knows none."""
    if priority and not backend.capabilities.priorities:
        raise click.UsageError(
            f"--priority: the service of {backend.name} delivers in order of arrival, and knows no priorities; use"
            " another queue for what is urgent"
        )


def check_names(backend: "Backend", option: str | None, *, in_batch: bool) -> None:
    """Raise UsageError for an option that names tasks where the queue's service does not know an id again."""
    able = backend.capabilities
    if option is not None and not (able.deduplicates or (in_batch and able.knows_batch_ids)):
        raise click.UsageError(
            f"{option}: the service of {backend.name} does not know an id again, so a second push would run it twice"
        )


def check_rules(rules: Sequence[str]) -> None:
    """Raise UsageError for what is no exit rule."""
    from jobq.formats.exit_rules import parse  # noqa: PLC0415 - --help must not pay for it

    for rule in rules:
        try:
            parse(rule)
        except ValueError as error:
            raise click.UsageError(f"--on-exit: {error}") from None


def variables_of(pairs: Sequence[str]) -> Mapping[str, str]:
    """Return the variables that are given, or named to be taken from here; raises UsageError."""
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            if name not in os.environ:
                raise click.UsageError(f"--env {name}: there is no such variable here; write {name}=VALUE")
            value = os.environ[name]
        values[name] = value
    return values
