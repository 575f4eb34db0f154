"""`jobq checkpoint` and `jobq progress`: what a command that jobq runs says to its worker."""

import sys

import click

from jobq import task_client
from jobq.cli.common import ExampleCommand
from jobq.errors import ConfigurationError


@click.command(
    cls=ExampleCommand,
    examples=("jobq checkpoint 'epoch 3'", "date | jobq checkpoint -", "jobq checkpoint --dir"),
)
@click.argument("value", required=False)
@click.option(
    "--dir", "files", is_flag=True, help="Save the files in JOBQ_CHECKPOINT_DIR; the next attempt finds them."
)
def checkpoint(value: str | None, files: bool) -> int:
    """Save how far this task is: its next attempt, on any machine, finds VALUE in JOBQ_CHECKPOINT; `-` reads it.

    It is saved for good when this command ends with 0. Anything else: 1 = the task has lost its lease, 75 = it may or
    may not be saved, and may be saved again. At most 64 KiB.
    """
    if (value is None) != files:
        raise click.UsageError("give a VALUE, or --dir for the files in JOBQ_CHECKPOINT_DIR")
    if value is None:
        task_client.checkpoint_directory()
        return 0
    task_client.checkpoint(sys.stdin.read().rstrip("\n") if value == "-" else value)
    return 0


@click.command(cls=ExampleCommand, examples=("jobq progress 0.42 'epoch 3'",))
@click.argument("share")
@click.argument("text", default="")
def progress(share: str, text: str) -> int:
    """Report how far this task is: SHARE from 0 to 1, or `-` for unknown, and a TEXT; `jobq QUEUE ps` shows both."""
    try:
        done = None if share == "-" else float(share)
    except ValueError:
        raise click.UsageError(f"{share!r} is no share of the whole: from 0 to 1, or -") from None
    if done is not None and not 0 <= done <= 1:
        raise ConfigurationError(f"{share} is no share of the whole: from 0 to 1")
    task_client.progress(done, text)
    return 0
