"""`push --grid` and `push --each`: the points of a sweep into the queue; with --resume, by running it again."""

import click

from jobq.backend import Backend
from jobq.cli.common import run_async
from jobq.cli.display import terminal
from jobq.cli.submit.cursor_lease import CursorLease, push_under_cursor
from jobq.cli.submit.push_given import HowToPush
from jobq.cli.submit.record_push import RecordPush
from jobq.cli.submit.resumable_push import check_resumable
from jobq.cli.submit.sweep import show_first
from jobq.submit.pusher import Pusher
from jobq.submit.record_tasks import RecordTasks, index_ids, named_by_index


def push_sweep(how: HowToPush, tasks: RecordTasks, name: str | None, *, accepts_changes: bool, dry_run: bool) -> int:
    """Queue all points, or what is left of them; return the exit code.

    Args:
        how: to push.
        tasks: of the points.
        name: of a push that goes on when it is run again; None = all points are queued, each with a random id.
        accepts_changes: whether records of the file that are not queued yet may be others than when it began.
        dry_run: print the first ones, and queue nothing.
    """
    count = tasks.records.count
    assert count is not None
    if name is not None:
        check_resumable(how, accepts_changes=accepts_changes)
        if accepts_changes and tasks.records.file is None:
            raise click.UsageError("--accept-changes is about a FILE, of lines or of --each")
        tasks.id_of = named_by_index(name, count)
        tasks.mend = "" if tasks.records.file is None else "; mend it and go on with --accept-changes"
    if dry_run:
        return run_async(show_first(tasks, as_json=how.echo.as_json))
    if not count:
        terminal.say("there are no records, so nothing is queued")
        return 0
    if name is None:

        async def at_once(backend: Backend) -> int:
            return await RecordPush(pusher=how.pusher(backend), tasks=tasks).once()

        return how.connected(at_once, interruptible=True)

    async def resumably(pusher: Pusher, cursor: CursorLease) -> int:
        return await RecordPush(pusher=pusher, tasks=tasks).resumably(cursor, name, accepts_changes=accepts_changes)

    async def ids() -> list[str]:
        return index_ids(name, count)

    return push_under_cursor(how, f"push:{name}", resumably, ids)
