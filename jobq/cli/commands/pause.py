"""`jobq QUEUE pause` and `resume`: hand out nothing new for a while."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from jobq.cli.common import ExampleCommand, json_option, with_queue
from jobq.cli.display import terminal
from jobq.cli.noted import noted
from jobq.pausing import mark_of, pausable

if TYPE_CHECKING:
    from jobq.backend import Backend


@click.command(cls=ExampleCommand, examples=("jobq demo pause", "jobq demo pause 'GPU driver update'"))
@click.argument("reason", default="")
@json_option
@click.pass_context
def pause(ctx: click.Context, reason: str, as_json: bool) -> int:
    """Hand out no task from now on, whichever worker asks; what runs goes on, and pushes are taken.

    The reason is shown with the queue's counts. A second pause replaces the first one's reason.

    Workers of this machine, PostgreSQL and HTTP see it within a second, those of a Storage Queue within a minute. A
    worker with nothing to do waits for the end of the pause, for its --idle-timeout, or 10 minutes.
    """

    async def work(backend: "Backend") -> None:
        mark = mark_of(reason)
        async with noted(backend, "pause") as change:
            await pausable(backend).pause(mark)
            change.said = mark.reason
        if as_json:
            terminal.put_json({"queue": backend.name, "paused": asdict(mark)})
        else:
            terminal.say(f"queue {terminal.visible(backend.name)} is paused; go on with: jobq QUEUE resume")

    return with_queue(ctx, work, brief=True)


@click.command(cls=ExampleCommand, examples=("jobq demo resume",))
@json_option
@click.pass_context
def resume(ctx: click.Context, as_json: bool) -> int:
    """Hand tasks out again, after `pause`."""

    async def work(backend: "Backend") -> None:
        async with noted(backend, "resume") as change:
            before = await pausable(backend).resume()
            change.said = "it was not paused" if before is None else f"it was {before}"
        if as_json:
            terminal.put_json({"queue": backend.name, "paused": None})
        elif before is None:
            terminal.say(f"queue {terminal.visible(backend.name)} was not paused")
        else:
            terminal.say(f"queue {terminal.visible(backend.name)} goes on; it was {terminal.visible(str(before))}")

    return with_queue(ctx, work, brief=True)
