"""The load generator: on exactly one replica by a named lease; what is wanted and how it stands are in the database.

No replica keeps a state of its own, so every one answers the same, and a stop may reach any of them. What it adds is
named by run and number: tasks that a lost answer, or two runners for a moment, add twice are one (S8).
"""

import asyncio
import contextlib
import json
import logging
import random
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final

from jobq.errors import BackendUnavailable, JobqError, LeaseHeld, LockLost
from jobq.lease.named import NamedLease, named_lease
from jobq.lease.store import LeaseState, store_of
from jobq.server import answers, schemas
from jobq.server.endpoint import Endpoints, Reply
from jobq.server.error_responses import RequestRefused
from jobq.server.request import RequestCall, ServiceState
from jobq.server.tokens import Scope
from jobq.settings import Settings
from jobq.signing.signer import signer_of
from jobq.task import Task

_log: Final = logging.getLogger("jobq.server")
LEASE: Final = "jobq.generator"
_LENGTH: Final = "{seconds}"
_TTL: Final = timedelta(seconds=10)
_TTL_OF_TESTS: Final = timedelta(seconds=5)
_LOOK_SECONDS: Final = 1.0
_STEP_SECONDS: Final = 0.2
_MOST_AT_ONCE: Final = 2_000
_RACES: Final = 20
_MOST_DIGITS: Final = 19  # of 63 bits
ENDPOINTS: Final = Endpoints("/api/generator")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the generator is to do, as any replica was asked last.

    Attributes:
        is_running: whether it is to run.
        run: counts the starts.
        rate: tasks a second.
        command: of each.
        total: stop after so many; None = never.
        min_seconds, max_seconds: between which each task's length is, at random; None = it has none.
    """

    is_running: bool = False
    run: int = 0
    rate: float = 1.0
    command: str = "true"
    total: int | None = None
    min_seconds: float = 0.0
    max_seconds: float | None = None

    def task(self, run: int, number: int) -> Task:
        """Return a task of a run; the same each time, so that two runners add one (S8)."""
        id_ = f"gen-{run}-{number}"
        if self.max_seconds is None:
            return Task.new(command=self.command, id=id_)
        seconds = random.Random(id_).uniform(self.min_seconds, self.max_seconds)  # noqa: S311 - a load, no secret
        return Task.new(command=self.command.replace(_LENGTH, f"{seconds:.3f}"), id=id_)


def _document(queue: str) -> str:
    return f"generator {queue}"


async def _wanted(root: Any, queue: str) -> tuple[Wanted, int]:
    document = await root.document(_document(queue))
    return (Wanted(), 0) if document is None else (Wanted(**json.loads(document.value)), document.version)


async def _want(root: Any, queue: str, change: Any) -> Wanted:
    for _ in range(_RACES):
        known, version = await _wanted(root, queue)
        wanted: Wanted = change(known)
        if wanted == known or await root.write_document(_document(queue), json.dumps(asdict(wanted)).encode(), version):
            return wanted
    raise BackendUnavailable("the generator changes again and again; nothing was changed")


def _progress(cursor: str | None) -> tuple[int, int]:
    """Return the run and how many of its tasks are added, as the lease's cursor says."""
    run, _, pushed = (cursor or "").partition(" ")
    # Anything else is not of a generator: somebody has held its lease by the database.
    return (int(run), int(pushed)) if _is_count(run) and _is_count(pushed) else (0, 0)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS


async def _state(call: RequestCall) -> dict[str, Any]:
    wanted, _ = await _wanted(call.service.places.root, call.queue)
    record = await store_of(await call.backend()).read(LEASE)
    is_held = record is not None and record.state is LeaseState.ACTIVE
    run, pushed = _progress(record.cursor if record else None)
    is_done = wanted.total is not None and run == wanted.run and pushed >= wanted.total
    if wanted.is_running and not is_done:
        state = "running" if is_held else "starting"
    else:
        state = "stopping" if is_held else "stopped"
    return {
        "desired": "running" if wanted.is_running and not is_done else "stopped",
        "state": state,
        "runner": record.holder if record is not None and is_held else None,
        "rate": wanted.rate,
        "command": wanted.command,
        "total": wanted.total,
        "min_seconds": wanted.min_seconds,
        "max_seconds": wanted.max_seconds,
        "pushed": pushed if run == wanted.run else 0,
        "run": wanted.run,
    }


@ENDPOINTS.add("GET", "", Scope.VIEW, answers={200: answers.Generator}, is_of_default=True)
async def look(call: RequestCall) -> Reply:
    """How the load generator stands; the same from every replica."""
    return 200, await _state(call)


@ENDPOINTS.add(
    "POST",
    "/start",
    Scope.ADMIN,
    body=schemas.GeneratorStart,
    answers={202: answers.Generator},
    is_of_default=True,
)
async def start(call: RequestCall) -> Reply:
    """Let the load generator run, on one replica."""
    body: schemas.GeneratorStart = call.body

    if body.max_seconds is not None and body.max_seconds < body.min_seconds:
        raise RequestRefused(400, "refused", "max_seconds is less than min_seconds")

    def change(known: Wanted) -> Wanted:
        asked = Wanted(is_running=True, run=known.run, **body.model_dump())
        if asked.max_seconds is not None and "command" not in body.model_fields_set:
            asked = replace(asked, command=f"sleep {_LENGTH}")
        asked.task(asked.run, 0)  # raises for a command that no task can have
        return asked if known == asked else replace(asked, run=known.run + 1)

    call.audited["run"] = (await _want(call.service.places.root, call.queue, change)).run
    return 202, await _state(call)


@ENDPOINTS.add("POST", "/stop", Scope.ADMIN, answers={202: answers.Generator}, is_of_default=True)
async def stop(call: RequestCall) -> Reply:
    """Let it stop, wherever it runs."""
    await _want(call.service.places.root, call.queue, lambda known: replace(known, is_running=False))
    return 202, await _state(call)


class GeneratorLoop:
    """Runs the generator of the default queue on this replica, when it is wanted and no other replica has it.

    Args:
        service: whose.
        settings: for the lease.
    """

    def __init__(self, service: ServiceState, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._queue = service.places.default

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                wanted, _ = await _wanted(self._service.places.root, self._queue)
                if wanted.is_running:
                    await self._try(wanted)
            except (JobqError, OSError) as error:
                _log.warning("the generator rests: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _try(self, wanted: Wanted) -> None:
        backend = self._service.places.root
        store = store_of(backend)
        record = await store.read(LEASE)
        run, pushed = _progress(record.cursor if record else None)
        if run == wanted.run and wanted.total is not None and pushed >= wanted.total:
            return  # it has done all that it was to do
        ttl = _TTL_OF_TESTS if self._settings.allow_short_lease else _TTL
        lease = named_lease(
            store, self._settings, LEASE, ttl=ttl, wait=False, holder=f"replica {self._service.replica}"
        )
        with contextlib.suppress(LeaseHeld, LockLost):
            async with lease:
                await self._generate(backend, lease)

    async def _generate(self, backend: Any, lease: NamedLease) -> None:
        due = 0.0
        signer = signer_of(backend)
        run, pushed = _progress(lease.cursor)
        while not lease.is_lost:
            wanted, _ = await _wanted(self._service.places.root, self._queue)
            if not wanted.is_running or (run == wanted.run and wanted.total is not None and pushed >= wanted.total):
                return
            if run != wanted.run:
                run, pushed, due = wanted.run, 0, 0.0
            due = min(due + wanted.rate * _STEP_SECONDS, _MOST_AT_ONCE)
            count = int(due)
            if wanted.total is not None:
                count = min(count, wanted.total - pushed)
            if count:
                tasks = [wanted.task(run, number) for number in range(pushed, pushed + count)]
                await backend.push(tasks if signer is None else await asyncio.to_thread(signer.sign, tasks))
                due -= count
                pushed += count
                await lease.save(f"{run} {pushed}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STEP_SECONDS):
                    await lease.lost.wait()
