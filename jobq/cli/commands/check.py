"""`jobq QUEUE check`: is this queue as it should be, and does its service do what jobq assumes?"""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from jobq.cli.common import ExampleCommand, json_option, with_queue
from jobq.cli.display import queue_name, terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobq.backend import Backend
    from jobq.examination import Finding


@click.command(
    cls=ExampleCommand,
    examples=("jobq demo check --look", "jobq myaccount/myqueue check", "jobq demo check --look --json"),
)
@click.option("--look", is_flag=True, help="Look at this queue alone: try nothing out, change nothing.")
@json_option
@click.pass_context
def check(ctx: click.Context, look: bool, as_json: bool) -> int:
    """Look at the queue's settings and at what you may do; then try the service out, on queues of the check's own.

    That takes a minute or two, and makes and deletes queues whose names begin with jobq-check (SQL and HTTP: one, which
    is left empty). Exit 1 when something is to be done, or differs from what jobq assumes.
    """

    async def work(backend: "Backend") -> int:
        from jobq.cli import service_check  # noqa: PLC0415 - the conformance suite, which nothing else needs

        found = await _shown(service_check.look(backend), as_json=as_json)
        if not look:
            trial = service_check.Trial(backend)
            if not as_json:
                end = "deleted afterwards" if trial.is_deleted else "left empty"
                terminal.say(f"trying the service out on {trial.queue}, {end}: a minute or two")
            found += await _shown(trial.findings(), as_json=as_json)
        differs = sum(each.verdict == "differs" for each in found)
        if not as_json:
            terminal.say(f"{len(found)} things looked at, {differs} to see to")
        return 1 if differs else 0

    return with_queue(ctx, work, interruptible=True)


async def _shown(findings: "AsyncIterator[Finding]", *, as_json: bool) -> list["Finding"]:
    found = []
    async for finding in findings:
        found.append(finding)
        if as_json:
            terminal.put_json(asdict(finding))
        else:
            terminal.put(_line(finding))
            if finding.advice:
                terminal.put(f"         {terminal.visible(queue_name.to_copy(finding.advice))}")
        terminal.flush()
    return found


def _line(finding: "Finding") -> str:
    is_as_assumed = not finding.assumed or finding.assumed == finding.found
    assumed = "" if is_as_assumed else f" (assumed: {finding.assumed})"
    return f"{finding.verdict:8} {finding.what}: {finding.found}{assumed}"
