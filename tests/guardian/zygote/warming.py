"""A zygote, Python tasks and who is still alive of them, for tests."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from jobq.run.process import OUR_PYTHON, call_function
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.spawning import Started, guardian_of, start
from tests.guardian.stage import ENV, ROOT, children, marker, state

MODULE = "tests.guardian.zygote.warm_tasks"


def environment(**more: str) -> dict[str, str]:
    return {**ENV, "PYTHONPATH": str(ROOT), **more}


def argv_of(function: str, **kwargs: object) -> tuple[str, ...]:
    name = function if ":" in function else f"{MODULE}:{function}"
    with NamedTemporaryFile("w", prefix="arguments-", delete=False) as file:  # who reads it removes it
        json.dump(kwargs, file)
    return (sys.executable, "-P", call_function.__file__, name, file.name)


class Stage:
    """A spawner whose guardian has a zygote.

    Attributes:
        mark: carried by the environment of the zygote and of all that is forked below it.
    """

    def __init__(self, spawner: GuardianSpawner, mark: str) -> None:
        self.spawner, self.mark = spawner, mark
        self.guardian = guardian_of(spawner)

    async def preload(self, *modules: str, **more: str) -> None:
        await self.spawner.preload(modules or (MODULE,), environment(MARK=self.mark, **more))

    @property
    def zygote(self) -> int:
        """Its number; there must be one: 0 would signal our own group."""
        found = [pid for pid in children(self.guardian) if is_zygote(pid)]
        assert len(found) == 1
        return found[0]

    async def call(
        self, function: str, *, warm: bool = True, launch: Mapping[str, object] | None = None, **kwargs: object
    ) -> Started:
        fields: dict[str, object] = {"env": environment(), **(launch or {})}
        return await start(self.spawner, *argv_of(function, **kwargs), forked=warm, **fields)  # type: ignore[arg-type] # as there


@asynccontextmanager
async def stage(*modules: str, **env: str) -> AsyncIterator[Stage]:
    async with GuardianSpawner() as spawner:
        made = Stage(spawner, marker())
        await made.preload(*modules, **env)
        yield made
    assert carriers(made.mark) == []


def is_zygote(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "jobq zygote" and os.getsid(pid) == pid
    except OSError:  # it has ended
        return False


def carriers(mark: str) -> list[int]:
    """Return who lives and has the environment of a stage's zygote."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - plain names are all that is needed, and quicker
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended while we looked
            if f"MARK={mark}".encode() in words and state(int(name)) not in "ZX":
                found.append(int(name))
    return found


@contextmanager
def impatient_guardian(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Let guardians that start now wait for 0.1 s only."""
    code = (
        f"import runpy, sys, jobq.run.guardian.zygote_client as warm; warm.{name} = 0.1; sys.argv[0] = 'guardian';"
        "runpy.run_module('jobq.run.guardian', run_name='__main__', alter_sys=True)"
    )
    real = subprocess.Popen

    def started(command: list[str], **more: object) -> object:
        assert command[1:6] == [*OUR_PYTHON, "jobq.run.guardian"]
        return real([command[0], "-P", "-c", code, *command[6:]], **more)  # type: ignore[call-overload] # passed through

    monkeypatch.setattr(subprocess, "Popen", started)
    yield
    monkeypatch.undo()
