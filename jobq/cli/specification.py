"""`jobq QUEUE push --spec MODULE:NAME`: the tasks that a Python class or async generator lists."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from jobq.backend import Backend
from jobq.cli import describe, terminal
from jobq.cli.batches import Pusher
from jobq.cli.lines import Template
from jobq.cli.progress import Bar
from jobq.errors import JobqError
from jobq.task import Task
from jobq.workspec import Counts, WorkSpecification, enqueue

_NOT_THEIRS: Final = (str(Path(__file__).parents[1]), f"{os.sep}asyncio{os.sep}", f"{os.sep}concurrent{os.sep}futures")

Specification = WorkSpecification[Any] | Callable[[], Any]


def specification_of(name: str) -> Specification:
    """Return what MODULE:NAME means, looked up from the current folder as `python -m` does.

    Raises:
        UsageError: there is no such module or name, or it is no specification.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise click.UsageError(f"--spec {name}: write MODULE:NAME, as in experiments.folds:Folds")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports one that is not: its traceback tells where
        raise click.UsageError(
            f"--spec {name}: no module {error.name!r} here or in this Python ({sys.executable})"
        ) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"--spec {name}: module {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    if inspect.isclass(found):
        if not issubclass(found, WorkSpecification):
            raise click.UsageError(f"--spec {name}: the class does not derive from jobq.WorkSpecification")
        return found()
    if isinstance(found, WorkSpecification) or callable(found):
        return found  # type: ignore[no-any-return] # checked just now
    raise click.UsageError(f"--spec {name}: neither a jobq.WorkSpecification nor a function that lists tasks")


async def push_specification(
    pusher: Pusher, specification: Specification, template: Template, *, backend: Backend, dry_run: bool, as_json: bool
) -> int:
    """Queue what a specification lists; in a dry run print it instead. Return the exit code."""

    async def show(tasks: Sequence[Task]) -> None:
        for task in tasks:
            body = task.encode()
            if as_json:
                terminal.put_json({"id": task.id, **describe.as_json(body, env=False)})
            else:
                terminal.put(describe.what_runs(body))

    latest = Counts()
    with Bar("considering") as bar:

        def on_progress(counts: Counts) -> None:
            nonlocal latest
            latest = counts
            bar.show(counts.considered, _told(counts, dry_run=dry_run))

        try:
            await enqueue(
                show if dry_run else pusher.push,
                specification,
                make=lambda command: template.task(command=command),
                on_progress=on_progress,
            )
        except JobqError:
            raise
        except Exception as error:  # noqa: BLE001 - a stranger's code; told with its traceback
            import traceback  # noqa: PLC0415 - a fault in a stranger's code is rare

            traceback.print_exception(error.with_traceback(_without_ours(error)))
            terminal.complain(f"the specification failed; {_told(latest, dry_run=dry_run)} on {backend.name}")
            return 1
    terminal.tell(f"{_told(latest, dry_run=dry_run)} on {backend.name}")
    return 0


def _told(counts: Counts, *, dry_run: bool) -> str:
    queued = "would queue" if dry_run else "queued"
    return f"considered {counts.considered}, skipped {counts.skipped}, {queued} {counts.queued}"


def _without_ours(error: BaseException) -> Any:
    """Return the part of a traceback that begins in the user's code; all of it when none does."""
    here = error.__traceback__
    while here is not None and any(part in here.tb_frame.f_code.co_filename for part in _NOT_THEIRS):
        here = here.tb_next
    return here or error.__traceback__
