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


# Of several commands that run tasks.
NUM_WORKERS: Final = option(
    "--num-workers", "-n", text="How many tasks run at once.", default="1", metavar="N", type=click.IntRange(1, 4096)
)
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
