"""The real command line in a process of its own, on a stage's queue."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.fork_server import forked


@dataclass
class Ended:
    """How a command line ended."""

    code: int
    out: str
    err: str


async def start(
    stack: AsyncExitStack, folder: Path, words: tuple[str, ...], settings: dict[str, str]
) -> asyncio.subprocess.Process:
    """Start it in a folder, which is its HOME; ended with the stack."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    process = await forked.create_subprocess_exec(
        *(sys.executable, "-m", "jobq", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=kept | {"HOME": str(folder), "JOBQ_HOME": str(folder)} | settings,
        cwd=folder,
    )
    stack.push_async_callback(_end, process)
    return process


async def ended(process: asyncio.subprocess.Process, seconds: float = 60, *, secret: str) -> Ended:
    """Return how it ended; it must not have told the secret."""
    async with asyncio.timeout(seconds):
        out, err = await process.communicate()
    assert process.returncode is not None
    for text in (out, err):
        assert secret.encode() not in text, "the key is told"
    return Ended(process.returncode, out.decode(), err.decode())


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.communicate()
