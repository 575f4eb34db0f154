"""Options of commands that run tasks, each of a setting; declared once, where several commands have them."""

from collections.abc import Callable
from typing import Any, Final

import click

from jobq.cli.common import duration, size


def option(*names: str, text: str, default: str, **more: Any) -> Callable[[Any], Any]:
    """Return an option of the setting of its name; tests/cli/test_defaults.py holds `default` to what Settings has."""
    return click.option(*names, help=f"{text} Default: {default}.", **more)


def time_option(name: str, *, text: str, default: str) -> Callable[[Any], Any]:
    """Likewise, of one that is a duration."""
    return option(name, text=text, default=default, metavar="DURATION", callback=duration)


def setting_of(_context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """Return the value of the setting of its name, as click asks."""
    if given is None or given == ():
        return None
    from jobq.settings import Settings  # noqa: PLC0415 - `jobq worker --help` must not pay for it

    try:
        Settings.FIELDS[str(parameter.name)].check(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return given


# Of several commands that run tasks.
NUM_WORKERS: Final = option(
    "--num-workers", "-n", text="How many tasks run at once.", default="1", metavar="N", type=click.IntRange(1, 4096)
)
SLOTS: Final = option(
    "--num-workers", "-n", text="How many tasks run at once; auto = as many as fit what is offered.", default="1",
    metavar="N", callback=setting_of,
)  # fmt: skip
_OFFER: Final = (
    option(
        "--cpus", "offer_cpus", metavar="N", callback=setting_of, default="none",
        text="Offer processors to tasks that ask for some (push --cpus): a number, or auto, see `jobq config`.",
    ),
    option(
        "--gpus", "offer_gpus", metavar="LIST", callback=setting_of, default="none",
        text="Offer GPUs (push --gpus), by their indices or ids, as in 0,2, or auto.",
    ),
    option(
        "--memory", "offer_memory", metavar="SIZE", callback=setting_of, default="none",
        text="Offer memory (push --mem), or auto.",
    ),
    option(
        "--tag", "tags", metavar="TAG", multiple=True, callback=setting_of, default="none",
        text="Take tasks that need this tag (push --needs), too; may be repeated.",
    ),
)  # fmt: skip


def offering(command: Any) -> Any:
    """Give a command the options that say what it offers of its machine."""
    for each in reversed(_OFFER):
        command = each(command)
    return command


MEMORY_LIMIT: Final = option(
    "--memory-limit", metavar="SIZE", callback=size, default="no limit",
    text="How much memory a task's whole process tree may use before it is killed and has failed: 512M, 2G.",
)  # fmt: skip
LOAD: Final = option(
    "--load", metavar="LOAD", default="no limit",
    text="Start nothing new while the machine's load is above this: 7.5, or 80% of its processors.",
)  # fmt: skip
MEMFREE: Final = option(
    "--memfree", metavar="SIZE", callback=size, default="no limit",
    text="Start nothing new while less memory than this is free: 4G.",
)  # fmt: skip
BACKOFF: Final = time_option(
    "--backoff", text="The longest delay after a first failure; doubles with each.", default="5s"
)
STOP_GRACE: Final = time_option(
    "--stop-grace", text="From SIGTERM to SIGKILL for tasks when this ends early.", default="20s"
)
VIEW: Final = option(
    "--view", type=click.Choice(["auto", "live", "lines"]), default="auto",
    text="live = keep a table of what runs below the lines; lines = do not; auto = live on a terminal, without a pipe.",
)  # fmt: skip
