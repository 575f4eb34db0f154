"""`jobq QUEUE cancel`: end tasks that wait, and stop those that run."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from jobq.cli import completions, whole_ids
from jobq.cli.commands.status import say_missing
from jobq.cli.common import ExampleCommand, json_option, with_queue
from jobq.cli.display import format_task, terminal
from jobq.cli.noted import in_words, noted

if TYPE_CHECKING:
    from jobq.backend import Backend
    from jobq.journal.records import Canceled, TaskRecord
    from jobq.journal.store import Journal

_FIELDS: Final = ("id", "state", "command", "host", "attempt", "batch")
_PAGE: Final = 500
_SOME_ID: Final = "01a1fe07-5953-7359-9cd5-f423114d42f8"


@click.command(
    cls=ExampleCommand,
    examples=(
        f"jobq demo cancel {_SOME_ID}",
        "jobq demo cancel --where 'command=*train.py*' --where state=running",
        "jobq demo cancel --all --yes",
    ),
)
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=completions.ids)
@click.option("--all", "all_", is_flag=True, help="All that wait or run now.")
@click.option(
    "--where",
    "where",
    multiple=True,
    metavar="FIELD=PATTERN",
    help="Those of which this holds; FIELD is id, state, command, host, attempt or batch; * stands for anything.",
)
@click.option("--yes", is_flag=True, help="Do not ask, for --all.")
@json_option
@click.pass_context
def cancel(
    ctx: click.Context, ids: tuple[str, ...], all_: bool, where: tuple[str, ...], yes: bool, as_json: bool
) -> int:
    """Cancel tasks. One that waits will not run; one that runs is stopped by its worker, and not started again.

    A worker hears of it with its next heartbeat, four times in a lease; then the task is asked to end, and killed after
    the worker's --stop-grace. Who waits for it sees `canceled`. A task that has ended stays as it is.
    """
    if bool(ids) + all_ + bool(where) != 1:
        raise click.UsageError("give the IDs of tasks, or --where, or --all; one of them")
    if all_ and not yes and not terminal.has_terminal_input():
        raise click.UsageError("cancel --all ends all tasks and there is no terminal to ask on; add --yes")

    async def work(backend: "Backend") -> int:
        from jobq.journal.filters import parsed  # noqa: PLC0415 - as above
        from jobq.journal.store import journal_of  # noqa: PLC0415 - --help must not pay for it

        journal = journal_of(backend)
        conditions = parsed(where, _FIELDS)
        if all_ and not yes and not terminal.confirmed(f"Cancel all tasks that wait or run on {backend.name}?"):
            terminal.say("nothing was canceled")
            return 1
        counts: dict[str, int] = {}
        missing: list[str] = []
        meant = await whole_ids.of_tasks(backend, ids, changes=True)
        async with noted(backend, "cancel", ids=meant, meant=in_words(all_, where)) as change:
            async for batch in _given(meant) if ids else _found(journal, conditions):
                # What is found by conditions has not ended; it may have been asked to, and is asked again, not told.
                former = {record.id for record in await journal.find(batch) if _is_meant(record)} if ids else set()
                for id_, answer in zip(batch, await journal.cancel(batch), strict=True):
                    if id_ not in former:
                        counts[answer] = counts.get(answer, 0) + 1
                    _put(id_, answer, missing, was_meant=id_ in former, as_json=as_json)
                change.count = sum(counts.values())
                change.said = ", ".join(f"{count} {answer}" for answer, count in counts.items())
        if not as_json and counts.keys() != {"unknown"}:
            terminal.put(_summary(counts))
            if where and not counts and not any("*" in pattern for _, pattern in conditions):
                terminal.say("nothing is exactly so; * stands for anything, as in --where 'command=*train.py*'")
        return say_missing(missing, as_json=as_json)

    return with_queue(ctx, work)


def _is_meant(record: "TaskRecord") -> bool:
    return record.cancel_requested or record.state == "canceled"


def _put(id_: str, answer: "Canceled", missing: list[str], *, was_meant: bool, as_json: bool) -> None:
    if answer == "unknown":
        missing.append(id_)
    elif as_json:
        terminal.put_json({"id": id_, "canceled": str(answer)})
    elif was_meant and answer == "stopping":
        terminal.say(f"{id_} still runs: its worker was asked to stop it already")
    elif was_meant:
        terminal.say(f"{id_} was canceled already")
    elif answer == "ended":
        terminal.say(f"{id_} had ended already")


def _summary(counts: dict[str, int]) -> str:
    canceled, stopping = counts.get("canceled", 0), counts.get("stopping", 0)
    text = f"canceled {canceled} task{'' if canceled == 1 else 's'} that waited"
    if not stopping:
        return text
    # Whether it stops is its worker's doing, which may be gone, or of a version that does not ask.
    whose, what = ("worker of 1 that runs", "it") if stopping == 1 else (f"workers of {stopping} that run", "them")
    return f"{text}; asked the {whose} to stop {what}: `status` shows when that has happened"


async def _given(ids: Sequence[str]) -> AsyncIterator[list[str]]:
    different = list(dict.fromkeys(ids))
    for start in range(0, len(different), _PAGE):
        yield different[start : start + _PAGE]


async def _found(journal: "Journal", conditions: Sequence[tuple[str, str]]) -> AsyncIterator[list[str]]:
    """Yield the ids of unfinished tasks for which the conditions hold, in pages."""
    from jobq.journal.filters import holds  # noqa: PLC0415 - as above

    after = ""
    while records := await journal.unfinished(after, _PAGE):
        after = records[-1].id
        if batch := [record.id for record in records if holds(conditions, _values(record))]:
            yield batch


def _values(record: "TaskRecord") -> dict[str, object]:
    return {
        "id": record.id,
        "state": record.state,
        "command": format_task.what_runs(record.body),
        "host": (record.holder or "").rpartition(":")[0],
        "attempt": record.attempt,
        "batch": record.batch,
    }
