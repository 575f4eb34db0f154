"""What signatures cost: a task signed, a task checked, and a worker that wants them beside one that does not."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.measure import Figure, Meter, Row, compared, in_turns
from benchmarks.sections import Options
from jobq.run.attempt.signature_check import SignatureCheck, Verified
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.signing.keys import Algorithm, KeyFile, SigningKey
from jobq.signing.signer import Signer
from jobq.spec import resolve
from jobq.task import Task

_SLOTS = 8


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield a row for each algorithm, and one for workers."""
    yield _functions(folder / "a", "ed25519", options)
    yield _functions(folder / "b", "hmac-sha256", options)
    numbers = itertools.count()
    signed = _settings(folder / "c", "ed25519")
    off = Settings(num_workers=_SLOTS, scheduled_events="off")
    tasks = options.scaled(800)

    def worked(settings: Settings, _: int) -> Figure:
        return asyncio.run(_worked(f"sqlite://{folder}/{next(numbers)}.db/bench", settings, tasks))

    sides = {"signed": partial(worked, signed), "unsigned": partial(worked, off)}
    yield compared(f"worker, bash -c true, {_SLOTS} slots", in_turns(options.rounds, sides))


def _functions(folder: Path, algorithm: Algorithm, options: Options) -> Row:
    settings = _settings(folder, algorithm)
    tasks = [Task.new(command="true") for _ in range(options.scaled(2000))]
    signer = Signer(settings, "place", "bench")
    bodies = [task.encode() for task in signer.sign(tasks)]
    sides = {
        "check": lambda _: _check(settings, bodies),
        "sign": lambda _: _sign(signer, tasks),
        "encode and decode": lambda _: _plain(tasks),
    }
    return compared(f"signing, {algorithm}, a task", in_turns(options.rounds, sides), "us")


def _settings(folder: Path, algorithm: Algorithm) -> Settings:
    folder.mkdir()
    key = SigningKey.new(algorithm)
    key.write_new(folder / "key")
    KeyFile(keys=(key.trusted(),)).write(folder / "trusted.json")
    return Settings(
        num_workers=_SLOTS,
        scheduled_events="off",
        require_signed="on",
        sign_key_file=folder / "key",
        trusted_keys=folder / "trusted.json",
    )


def _sign(signer: Signer, tasks: Sequence[Task]) -> Figure:
    with Meter() as meter:
        signer.sign(tasks)
    return meter.figure(len(tasks))


def _check(settings: Settings, bodies: Sequence[bytes]) -> Figure:
    check = SignatureCheck(settings, ("place",), "bench")
    check.check()
    with Meter() as meter:
        for body in bodies:
            assert isinstance(check.verify("id", body, 0.0), Verified)
    return meter.figure(len(bodies))


def _plain(tasks: Sequence[Task]) -> Figure:
    with Meter() as meter:
        for task in tasks:
            Task.decode(task.encode())
    return meter.figure(len(tasks))


async def _worked(spec: str, settings: Settings, count: int) -> Figure:
    async with resolve(spec, settings) as queue:
        await queue.create()
        tasks = [Task.new(command="true") for _ in range(count)]
        if settings.require_signed == "on":
            tasks = Signer(settings, spec.removesuffix("/bench"), "bench").sign(tasks)
        await queue.push(tasks)
        with Meter() as meter:
            report = await Worker(queue, settings, spawner=GuardianSpawner()).run()
        assert report.succeeded == count, report
    return meter.figure(count)
