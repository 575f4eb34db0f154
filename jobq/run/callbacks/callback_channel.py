"""The worker's end of the connection to a callback's process; `child_program` documents what is said on it."""

import asyncio
import json
import logging
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from jobq import errors
from jobq.errors import JobqError, MalformedTask
from jobq.formats import strict_json
from jobq.lease.keeper import LeaseKeeper
from jobq.run.callbacks.child_program import MAX_LINE_BYTES
from jobq.run.process.peer import peer_of
from jobq.task_client import checked_checkpoint

_PATH_BYTES: Final = 100  # a Unix socket's path ends at 104 (macOS) or 108 (Linux)
_log: Final = logging.getLogger(__name__)


class CallbackChannel:
    """One attempt's connection: hands over the letter, then answers.

    It is a Unix socket in a folder that only this user may enter (A11). Only the process itself is spoken to, not
    another one of this user, such as a neighbour task (A6); then socket and folder are removed, so that nothing is left
    even if this program is killed (P5).

    Args:
        letter: what the process is to do.
        keeper: keeps the lease, and saves checkpoints in order with its renewals.

    Attributes:
        path: of the socket.
        returned: whether the callback has returned.
        text: what it returned, as JSON; empty when that cannot be written so.
        lost: why it cannot.
        raised: the name of the type of what it raised; empty = nothing.

    Raises:
        OSError: there is no room for a socket or a folder.
    """

    def __init__(self, letter: dict[str, Any], keeper: LeaseKeeper) -> None:
        self._letter = json.dumps(letter).encode() + b"\n"
        self._keeper = keeper
        self.returned = False
        self.text = ""
        self.lost = ""
        self.raised = ""
        self._process: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._folder = Path(_new_folder())
        self.path = str(self._folder / "line")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            self._listener.bind(self.path)
            self._listener.listen()
        except BaseException:
            self._close_listener()
            raise
        self._serving = asyncio.create_task(self._serve(), name="line to a callback's process")

    def speaks_with(self, pid: int) -> None:
        """Say who may connect; until then everyone waits."""
        self._process.set_result(pid)

    async def close(self) -> None:
        """Free everything, at any time and any number of times."""
        self._serving.cancel()
        with suppress(asyncio.CancelledError):
            await self._serving
        self._close_listener()

    async def _serve(self) -> None:
        try:
            reader, writer = await self._accept()
            try:
                writer.write(self._letter)
                await writer.drain()
                while question := await reader.readline():
                    writer.write(json.dumps(await self._answer(question)).encode() + b"\n")
                    await writer.drain()
            finally:
                writer.close()
        except OSError as error:  # it has ended, which others report
            _log.debug("a callback's process has hung up: %s", error)
        except ValueError as error:
            _log.warning("a callback's process says what is too long, and is not listened to any more: %s", error)

    async def _accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        try:
            while peer_of(connection) not in (None, await self._process):
                connection.close()
                _log.warning("another process than the callback's has tried to speak for it")
                connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self._close_listener()
            return await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE_BYTES + 1)
        except BaseException:
            connection.close()
            raise

    async def _answer(self, question: bytes) -> dict[str, Any]:
        try:
            return await self._do(strict_json.loads(question))
        except JobqError as error:
            name = type(error).__name__
            return {"error": name if hasattr(errors, name) else "JobqError", "text": str(error)}
        except Exception as error:  # noqa: BLE001 - a stranger's question harms nobody (S11)
            _log.exception("a callback's process asked for what cannot be done")
            return {"error": "JobqError", "text": type(error).__name__}

    async def _do(self, question: dict[str, Any]) -> dict[str, Any]:
        match question["op"]:
            case "lease":
                return {"remaining": self._keeper.remaining(), "lost": self._keeper.is_lost}
            case "checkpoint":
                await self._keeper.checkpoint(checked_checkpoint(question["value"]))
            case "returned":
                self.text, self.lost = str(question.get("json", "")), str(question.get("lost", ""))[:200]
                self.returned = True
            case "raised":
                self.raised = str(question["type"])
            case other:
                raise MalformedTask(f"unknown question {other!r}")
        return {}

    def _close_listener(self) -> None:
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _new_folder() -> str:
    room = _PATH_BYTES - len("/jobq-12345678/line")
    own = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="jobq-", dir=own if len(os.fsencode(own)) <= room else "/tmp")  # noqa: S108 - mkdtemp makes it safe
