"""`jobq QUEUE push --spec MODULE:NAME`: the tasks that a Python class or async generator lists."""

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from jobq.backend import Backend
from jobq.cli.display import format_task, terminal
from jobq.cli.display.progress_bar import Bar
from jobq.cli.interrupts import heard
from jobq.cli.submit.push_given import HowToPush
from jobq.errors import JobqError
from jobq.submit.input_lines import TaskOptions
from jobq.submit.pusher import Pusher
from jobq.task import Task
from jobq.workspec import Counts, WorkSpecification, enqueue

_NOT_THEIRS: Final = (
    *(f"{Path(__file__).parents[2]}{os.sep}", f"{os.sep}asyncio{os.sep}", f"{os.sep}concurrent{os.sep}futures"),
    *("<frozen importlib", f"{os.sep}importlib{os.sep}"),
)

Specification = WorkSpecification[Any] | Callable[[], Any]


class SpecificationFailed(JobqError):
    """A stranger's code failed; its traceback is on standard error."""


def specification_of(name: str) -> Specification:
    """Return what MODULE:NAME means, looked up from the current folder as `python -m` does.

    Raises:
        UsageError: there is no such module or name, it cannot be imported, or it is no specification.
        SpecificationFailed: it cannot be made.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise click.UsageError(f"--spec {name}: write MODULE:NAME, as in experiments.folds:Folds")
    if os.sep in module_name or module_name.startswith(".") or module_name.endswith(".py"):
        raise click.UsageError(
            f"--spec {name}: a module is named as Python imports it, not by its file: write"
            f" {Path(module_name.lstrip('.')).stem}:{attribute}, from the folder that holds it"
        )
    found = _imported(name, module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"--spec {name}: module {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    if inspect.isclass(found):
        if not issubclass(found, WorkSpecification):
            raise click.UsageError(f"--spec {name}: the class does not derive from jobq.WorkSpecification")
        try:
            return found()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code; shown with its traceback
            _print_theirs(error)
            raise SpecificationFailed(f"the specification failed: {_named(error)}") from None
    if isinstance(found, WorkSpecification) or callable(found):
        return found  # type: ignore[no-any-return] # checked just now
    raise click.UsageError(f"--spec {name}: neither a jobq.WorkSpecification nor a function that lists tasks")


def _imported(name: str, module_name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code; shown with its traceback
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise click.UsageError(
                f"--spec {name}: no module {missing!r} here or in this Python ({sys.executable})"
            ) from None
        _print_theirs(error)
        raise click.UsageError(f"--spec {name}: cannot import {module_name}: {_named(error)}") from None


def push_listed(how: HowToPush, name: str, *, dry_run: bool) -> int:
    """Queue what the specification MODULE:NAME lists, in a dry run print it instead; return the exit code."""
    with terminal.data_apart():
        found = specification_of(name)
        return how.connected(
            lambda backend: push_specification(
                how.pusher(backend), found, how.template, backend=backend, dry_run=dry_run, as_json=how.echo.as_json
            )
        )


async def push_specification(
    pusher: Pusher,
    specification: Specification,
    template: TaskOptions,
    *,
    backend: Backend,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Queue what a specification lists; in a dry run print it instead. Return the exit code.

    One Ctrl-C or SIGTERM ends the process: a thread in which the specification lists or checks cannot be stopped, and
    may block for ever. What is queued is durable, so nothing needs to be closed.
    """

    async def show(tasks: Sequence[Task]) -> None:
        for task in tasks:
            body = task.encode()
            if as_json:
                terminal.put_json({"id": task.id, **format_task.as_json(body, env=False)})
            else:
                terminal.put(format_task.what_runs(body))

    latest = Counts()
    interrupted = False
    with heard() as end, Bar("considering") as bar:

        def on_progress(counts: Counts) -> None:
            nonlocal latest
            latest = counts
            bar.show(counts.considered, _summary(counts, dry_run=dry_run))

        try:
            await enqueue(
                show if dry_run else pusher.push_to_its_end,
                specification,
                make=lambda command: template.task(command=command),
                on_progress=on_progress,
                finish_seconds=0,  # a pusher that is cancelled sees its batch to the end by itself
            )
        except (JobqError, terminal.OutputGone):
            raise
        except asyncio.CancelledError:
            interrupted = True
        except Exception as error:  # noqa: BLE001 - as above
            _print_theirs(error, or_all=True)
            summary = f"{_summary(latest, dry_run=dry_run)} on {backend.name}"
            doubt = f"; {pusher.doubt(pusher.doubtful)}" if pusher.doubtful else ""
            raise SpecificationFailed(f"the specification failed; {summary}{doubt}") from None
    if interrupted:
        counts = latest if dry_run else replace(latest, queued=pusher.count)  # the last batch may be acknowledged since
        ends = [f"{_summary(counts, dry_run=dry_run)} on {backend.name}"]
        if pusher.doubtful:
            ends.append(pusher.doubt(pusher.doubtful))
        terminal.complain("; ".join(["interrupted", *ends]))
        terminal.leave(end.exit_code)
    terminal.say(f"{_summary(latest, dry_run=dry_run)} on {backend.name}")
    return 0


def _summary(counts: Counts, *, dry_run: bool) -> str:
    queued = "would queue" if dry_run else "queued"
    return f"considered {counts.considered}, skipped {counts.skipped}, {queued} {counts.queued}"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _print_theirs(error: BaseException, *, or_all: bool = False) -> None:
    """Print an exception with the frames of the user's code; `or_all`: with ours when there are none of them."""
    import traceback  # noqa: PLC0415 - a fault in a stranger's code is rare

    traceback.print_exception(error.with_traceback(_without_ours(error) or (error.__traceback__ if or_all else None)))


def _without_ours(error: BaseException) -> Any:
    """Return the part of a traceback that begins in the user's code; None when none does."""
    here = error.__traceback__
    while here is not None and any(part in here.tb_frame.f_code.co_filename for part in _NOT_THEIRS):
        here = here.tb_next
    return here
