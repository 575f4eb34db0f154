"""`jobq QUEUE dead list|show|retry|purge`: the tasks that jobq gave up on."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from jobq.batch_ids import IdInBatch, key_of, without
from jobq.cli import completions, whole_ids
from jobq.cli.common import ExampleCommand, SuggestingGroup, batch_option, full_option, json_option, with_queue
from jobq.cli.display import format_journal, format_task, terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.noted import in_words, noted
from jobq.errors import JobqError, MalformedTask, PushError

if TYPE_CHECKING:
    from jobq.backend import Backend, DeadLetter
    from jobq.journal.change_noting import ChangeSaid
    from jobq.journal.records import Attempt

_BATCH: Final = 500
_MOST_LISTED: Final = 1_000_000
_SHOWN_WHY: Final = 80
_SOME_ID: Final = "01a1fe07-5953-7359-9cd5-f423114d42f8"
Act = Callable[[Sequence[str]], Awaitable[list[str]]]


_where_option: Final = click.option(
    "--where",
    multiple=True,
    metavar="FIELD=PATTERN",
    help="Those of which this holds: FIELD is id, reason, exit, error, host, command or batch; * stands for anything.",
)
_group_option: Final = click.option("--group", metavar="GROUP", help="Those of a group that `list --group-by` names.")


@click.group(
    cls=SuggestingGroup,
    examples=(
        "jobq demo dead list",
        f"jobq demo dead show {_SOME_ID}",
        "jobq demo dead retry --all",
        f"jobq demo dead purge {_SOME_ID}",
    ),
)
def dead() -> None:
    """Look after dead letters: tasks that failed too often, crashed too often, or are no tasks at all."""


@dead.command(
    name="list",
    cls=ExampleCommand,
    short_help="List dead letters, oldest first.",
    examples=(
        "jobq demo dead list -n 100",
        "jobq demo dead list --batch s7",
        "jobq demo dead list --json",
        "jobq demo dead list --group-by exit,error,host",
    ),
)
@click.option("-n", "--limit", type=click.IntRange(1, _MOST_LISTED), default=20, help="How many at most. Default: 20.")
@click.option(
    "--group-by",
    metavar="FIELDS",
    help="Count those that have these in common: some of reason, exit, error, host, separated by commas.",
)
@batch_option
@full_option
@json_option
@click.pass_context
def list_(ctx: click.Context, limit: int, group_by: str | None, batch: str | None, full: bool, as_json: bool) -> int:
    """List dead letters, oldest first: id, when it died, deliveries, why, what ran.

    With --group-by, count what they have in common: how the last attempt ended, its last words with numbers, paths and
    ids folded, and its host, where a journal knows it. `dead retry --group` takes the name of a group.
    """

    async def work(backend: "Backend") -> None:
        if group_by is not None:
            from jobq.cli.display import dead_letter_groups  # noqa: PLC0415 - most lists are plain

            await dead_letter_groups.put_groups(backend, group_by, batch, as_json=as_json)
            return
        letters = await _of_batch(backend, batch, limit + 1) if batch else await backend.dead_letters(limit + 1)
        rows: list[tuple[str, ...]] = []
        for letter in letters[:limit]:
            if as_json:
                terminal.put_json(_as_json(letter, env=False))
            else:
                rows.append(_row(letter))
        format_journal.put_rows(("ID", "DIED", "DELIVERIES", "WHY", "RUNS"), rows, full=full)
        if len(letters) > limit:
            terminal.say(f"there are more than {limit}; -n N shows more")

    return with_queue(ctx, work, brief=True)


async def _of_batch(backend: "Backend", name: str, limit: int) -> "list[DeadLetter]":
    """Return up to so many of a batch, oldest first; others are looked through until these are found."""
    from jobq.batches import batches_of  # noqa: PLC0415 - as above

    wanted = min(limit, (await batches_of(backend).find(name)).counts.get("dead", limit))
    asked = _BATCH
    while True:
        letters = await backend.dead_letters(asked)
        found = [letter for letter in letters if letter.batch == name]
        if len(found) >= wanted or len(letters) < asked:
            return found[:limit]
        asked *= 4


def _row(letter: "DeadLetter") -> tuple[str, ...]:
    said = (letter.description.splitlines() or [""])[0]
    why = said if said.startswith(letter.reason) else f"{letter.reason}: {said}" if said else letter.reason
    why = terminal.shortened(terminal.visible(why), _SHOWN_WHY)
    died = format_task.local_time(letter.died)
    return terminal.visible(letter.id), died, f"{letter.deliveries:3}", why, format_task.what_runs(letter.body)


def _as_json(letter: "DeadLetter", *, env: bool) -> dict[str, Any]:
    return {
        "id": letter.id,
        "reason": letter.reason,
        "description": letter.description,
        "deliveries": letter.deliveries,
        "died": format_task.moment(letter.died),
        **({} if letter.batch is None else {"batch": letter.batch}),
        **format_task.as_json(letter.body, env=env),
    }


@dead.command(
    cls=ExampleCommand,
    short_help="Show all of one dead letter.",
    examples=(f"jobq demo dead show {_SOME_ID}", f"jobq demo dead show {_SOME_ID} --json --show-env"),
)
@click.argument("id_", metavar="ID", shell_complete=completions.ids)
@click.option(
    "--show-env",
    is_flag=True,
    help="Show the values of its variables too, and the body of what is no task; they may be secrets.",
)
@json_option
@click.pass_context
def show(ctx: click.Context, id_: str, show_env: bool, as_json: bool) -> int:
    """Show all of one dead letter: why it died, its attempts, the end of its output, its task, or what is none."""

    async def work(backend: "Backend") -> int:
        (whole_id,) = await whole_ids.of_dead_letters(backend, [id_])
        letter = await _find(backend, whole_id)
        if letter is None:
            return _say_missing([id_], as_json=as_json)
        if as_json:
            attempts = [format_journal.attempt_as_json(each) for each in await _attempts(backend, letter.id)]
            terminal.put_json({**_as_json(letter, env=show_env), "attempts": attempts})
        else:
            _show(letter, await _attempts(backend, letter.id), env=show_env)
        return 0

    return with_queue(ctx, work, brief=True)


async def _find(backend: "Backend", id_: str) -> "DeadLetter | None":
    limit = _BATCH
    while True:
        letters = await backend.dead_letters(limit)
        found = next((letter for letter in letters if letter.id == id_), None)
        if found is not None or len(letters) < limit:
            return found
        limit *= 4


async def _attempts(backend: "Backend", id_: str) -> "list[Attempt]":
    """Return how its attempts ended, as far as there is a journal that knows."""
    from jobq.journal.store import KeepsJournal  # noqa: PLC0415 - --help must not pay for it

    journal = backend.journal if isinstance(backend, KeepsJournal) else None
    return [] if journal is None else await journal.attempts(id_)


def _show(letter: "DeadLetter", attempts: "Sequence[Attempt]", *, env: bool) -> None:
    rows = [
        ("id", terminal.visible(letter.id)),
        ("reason", terminal.visible(letter.reason)),
        ("died", format_task.local_time(letter.died)),
        ("deliveries", str(letter.deliveries)),
        *([] if letter.batch is None else [("batch", terminal.visible(letter.batch))]),
        *format_task.details(letter.body, env=env),
        *(("attempt", format_journal.attempt_line(attempt)) for attempt in attempts),
    ]
    for label, text in rows:
        # What a task counts of itself is as it was last put back: its last failure is not among them.
        if label != "counters":
            terminal.put(f"{label + ':':<14}{text}")
    terminal.put("description:")
    for line in letter.description.splitlines():
        terminal.put(f"  {terminal.visible(line)}")


@dead.command(
    cls=ExampleCommand,
    short_help="Put dead letters back into the queue.",
    examples=(
        f"jobq demo dead retry {_SOME_ID}",
        "jobq demo dead retry --where exit=137 --where 'host=node-7*'",
        "jobq demo dead retry --all",
    ),
)
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=completions.ids)
@click.option("--all", "all_", is_flag=True, help="All that are dead now.")
@_where_option
@_group_option
@json_option
@click.pass_context
def retry(
    ctx: click.Context, ids: tuple[str, ...], all_: bool, where: tuple[str, ...], group: str | None, as_json: bool
) -> int:
    """Put dead letters back into the queue, with fresh budgets; to be run again if it is interrupted."""
    _check_choice(ids, all_, where, group)

    async def work(backend: "Backend") -> int:
        meant = await _meant(backend, ids, where, group)
        async with noted(backend, "retry", ids=meant, meant=in_words(all_, where, group)) as change:
            return await _act(backend, backend.redrive, "retried", meant, all_, change, as_json=as_json)

    return with_queue(ctx, work)


@dead.command(
    cls=ExampleCommand,
    short_help="Delete dead letters for good.",
    examples=(f"jobq demo dead purge {_SOME_ID}", "jobq demo dead purge --all --yes"),
)
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=completions.ids)
@click.option("--all", "all_", is_flag=True, help="All that are dead now.")
@_where_option
@_group_option
@click.option("--yes", is_flag=True, help="Do not ask, for --all.")
@json_option
@click.pass_context
def purge(
    ctx: click.Context,
    ids: tuple[str, ...],
    all_: bool,
    where: tuple[str, ...],
    group: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete dead letters for good, with all that the journal has of them, so that `logs` knows none of them."""
    _check_choice(ids, all_, where, group)
    if all_ and not yes and not terminal.has_terminal_input():
        raise click.UsageError("purge --all deletes for good and there is no terminal to ask on; add --yes")

    async def work(backend: "Backend") -> int:
        if all_ and not yes and not terminal.confirmed(f"Delete all dead letters of {backend.name}?"):
            terminal.say("nothing was deleted")
            return 1
        meant = await _meant(backend, ids, where, group)
        async with noted(backend, "purge", ids=meant, meant=in_words(all_, where, group)) as change:
            return await _act(backend, backend.purge_dead, "purged", meant, all_, change, as_json=as_json)

    return with_queue(ctx, work)


def _check_choice(ids: tuple[str, ...], all_: bool, where: tuple[str, ...], group: str | None) -> None:
    if all_ + bool(ids) + bool(where or group) != 1:
        raise click.UsageError(
            "give the IDs of dead letters (`dead list` shows them), or --all, not both; or --where and --group"
        )


async def _meant(
    backend: "Backend", ids: tuple[str, ...], where: tuple[str, ...], group: str | None
) -> tuple[str, ...]:
    if not where and group is None:
        return tuple(await whole_ids.of_dead_letters(backend, ids, changes=True))
    from jobq.cli.display import dead_letter_groups  # noqa: PLC0415 - as above

    return tuple(await dead_letter_groups.chosen(backend, where, group))


async def _act(
    backend: "Backend",
    act: Act,
    done: str,
    ids: tuple[str, ...],
    all_: bool,
    change: "ChangeSaid",
    *,
    as_json: bool,
) -> int:
    count = 0
    missing: list[str] = []
    fault: JobqError | None = None
    total = (await backend.stats()).dead if all_ else len(ids)
    chunks = _dead_at_start(backend, total) if all_ else _batches(backend, ids)
    with Bar(done, total) as bar:
        async with aclosing(chunks):
            async for batch in chunks:
                try:
                    found = await act(batch)
                except JobqError as error:
                    found, fault = list(error.done), _both(fault, error)
                    goes_on = isinstance(error, MalformedTask) or (bool(found) and not isinstance(error, PushError))
                else:
                    goes_on = True
                    missing += without(batch, found)
                count += len(found)
                change.count, change.said = count, f"{done} {count}"
                if as_json:
                    _put_ids(found)
                bar.show(count, str(count))
                if not goes_on:
                    break  # an outage concerns all; a letter that stays as it is, no other (S11)
    if not as_json and (count or not missing):
        terminal.put(f"{done} {count} dead letter{'' if count == 1 else 's'}")
    if fault is not None:
        raise fault
    return _say_missing(missing, as_json=as_json) if missing and not all_ else 0


def _both(former: JobqError | None, error: JobqError) -> JobqError:
    """Return the error to show of two: the first, with what the other says."""
    if former is None:
        return error
    for note in [*([] if isinstance(error, MalformedTask) else [str(error)]), *getattr(error, "__notes__", [])]:
        former.add_note(note)
    return former


def _put_ids(ids: Sequence[str]) -> None:
    with suppress(terminal.OutputGone):  # what is begun is done to its end, though nobody may read of it
        for id_ in ids:
            terminal.put_json({"id": id_})
        terminal.flush()


async def _batches(backend: "Backend", ids: tuple[str, ...]) -> AsyncGenerator[Sequence[str]]:
    """Yield ids, some hundred at a time; many that a list has shown, as a walk comes by their letters, where it can."""
    from jobq.backend import WalksDead  # noqa: PLC0415 - --help must not pay for it

    left = {key_of(each): each for each in ids}
    if len(left) > _BATCH and isinstance(backend, WalksDead) and all(isinstance(each, IdInBatch) for each in ids):
        async with aclosing(backend.walk_dead()) as walk:
            async for window in walk:
                there = {(str(each), each.batch) for each in window}
                met = [
                    each for each in left.values() if isinstance(each, IdInBatch) and (str(each), each.batch) in there
                ]
                if met:
                    yield met
                for each in met:
                    del left[key_of(each)]
    different = list(left.values())
    for start in range(0, len(different), _BATCH):
        yield different[start : start + _BATCH]


async def _dead_at_start(backend: "Backend", total: int | None) -> AsyncGenerator[Sequence[str]]:
    """Yield the ids of those that were dead when this began, oldest first, though some may die again meanwhile.

    The consumer takes each batch out of the dead-letter place. Whatever dies later comes after, so that the first
    `total` are the ones meant; where the service cannot count, no id is yielded twice.
    """
    from jobq.backend import WalksDead  # noqa: PLC0415 - as above

    seen: set[Hashable] = set()
    if isinstance(backend, WalksDead):
        async with aclosing(backend.walk_dead()) as walk:
            async for window in walk:
                if batch := [each for each in window if key_of(each) not in seen]:
                    seen.update(map(key_of, batch))
                    yield batch
                if total is not None and len(seen) >= total:
                    return
        return
    staying = 0  # that were yielded, and are there still
    while total is None or len(seen) < total:
        at_most = _BATCH if total is None else min(_BATCH, total - len(seen))
        letters = [
            IdInBatch.of(letter.id, letter.batch, letter.work)
            for letter in await backend.dead_letters(at_most + staying)
        ]
        batch = [id_ for id_ in letters if key_of(id_) not in seen]
        if not batch and len(letters) <= staying:
            return
        staying = len(letters) - len(batch)
        if batch:
            seen.update(map(key_of, batch))
            yield batch


def _say_missing(ids: Sequence[str], *, as_json: bool = False) -> int:
    return terminal.not_found(f"no dead letter with the id {', '.join(ids)}", as_json=as_json, ids=list(ids))
