"""The worker's socket for what its tasks have to say: `jobq checkpoint` and `jobq progress` (`jobq.task_client`).

One socket for all tasks, in the worker's folder, which only this user may enter (A11). A task shows the token of its
attempt, which is worth nothing once that has ended, nothing to the queue: the keeper saves, fenced (S4), and nothing
to another task that has read it in /proc: who shows it must be below the attempt's first process (A6).
"""

import asyncio
import json
import logging
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from jobq.errors import ConfigurationError, JobqError, LockLost, MalformedTask
from jobq.formats import strict_json
from jobq.journal.records import MAX_TEXT_CHARACTERS, checked_progress
from jobq.run.attempt.checkpoints import AttemptCheckpoints
from jobq.run.process.peer import peer_of
from jobq.run.process.process_table import lineage
from jobq.run.process.task_folder import TaskFolder
from jobq.task_client import MAX_LINE_BYTES, checked_checkpoint

_PATIENCE_SECONDS: Final = 10.0  # for a question; who connects and says nothing is hung up on
# Connections: a task that opens thousands takes no descriptors from its neighbours, nor their way to the worker (S11).
_MOST_OF_ONE: Final = 16
_MOST_OF_OTHERS: Final = 64  # whose task is not known: yet, any more, or on this system
_log: Final = logging.getLogger(__name__)


@dataclass
class _Attempt:
    checkpoints: AttemptCheckpoints
    leader: int = 0  # not known yet, or never
    is_decided: asyncio.Event = field(default_factory=asyncio.Event)


class TaskSocket:
    """The socket of one worker; opened with its first task.

    Args:
        folder: where it lies; removes it.
    """

    def __init__(self, folder: TaskFolder) -> None:
        self._folder = folder
        self._server: asyncio.Server | None = None
        self._attempts: dict[str, _Attempt] = {}
        self._opening = asyncio.Lock()
        self._open = Counter[int]()  # by the leader of the task; 0 = others

    async def admit(self, checkpoints: AttemptCheckpoints) -> str:
        """Return what JOBQ_TASK_SOCKET says to one attempt; raises OSError when there is no room for a socket.

        Args:
            checkpoints: saves what it wants saved, fenced, and takes its progress.
        """
        async with self._opening:
            path = self._folder.path / "line"
            if not path.is_socket():  # the first time, or a task or a cleaner of temporary files has removed it
                self.close()
                # Kept before anything is waited for: a start that is cancelled in between would leave it open for ever.
                self._server = await asyncio.start_unix_server(
                    self._serve, path, limit=MAX_LINE_BYTES, start_serving=False
                )
                await self._server.start_serving()
        token = secrets.token_hex(16)
        self._attempts[token] = _Attempt(checkpoints)
        return f"{token}@{path}"

    def listen_to(self, admitted: str, leader: int) -> None:
        """Answer what an attempt's processes ask, by the number of the first; until then they wait."""
        attempt = self._attempts[admitted.partition("@")[0]]
        attempt.leader = leader
        attempt.is_decided.set()

    def dismiss(self, admitted: str) -> None:
        """Listen no more to an attempt that has ended."""
        attempt = self._attempts.pop(admitted.partition("@")[0], None)
        if attempt is not None:
            attempt.is_decided.set()

    def close(self) -> None:
        """Listen to nobody any more; repeatable."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Now: what it passes its connection on to, and who gets its number when it has ended, is not it.
        peer = peer_of(writer.get_extra_info("socket"))
        above = None if peer is None else lineage(peer)
        leaders = (attempt.leader for attempt in self._attempts.values())
        whose = next((leader for leader in leaders if leader and leader in (above or ())), 0)
        if self._open[whose] >= (_MOST_OF_ONE if whose else _MOST_OF_OTHERS):
            writer.transport.abort()  # who asks sees that the worker hung up, and may ask again
            return
        self._open[whose] += 1
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                question = await reader.readline()
            answer = await self._answer(question, above)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, TimeoutError) as error:  # it has gone, says too much, or nothing
            _log.debug("a task's question was not answered: %r", error)
        finally:
            self._open[whose] -= 1
            if not self._open[whose]:
                del self._open[whose]
            writer.close()

    async def _answer(self, question: bytes, above: frozenset[int] | None) -> dict[str, Any]:
        try:
            await self._do(strict_json.loads(question), above)
        except JobqError as error:
            return {"error": type(error).__name__, "text": str(error)}
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:  # a stranger's question harms nobody (S11)
            return {"error": ConfigurationError.__name__, "text": str(error)}
        return {}

    async def _do(self, question: Any, above: frozenset[int] | None) -> None:
        if not isinstance(question, dict) or not isinstance(question.get("token"), str):
            raise MalformedTask("is no question")
        attempt = self._attempts.get(question["token"])
        if attempt is not None:
            await attempt.is_decided.wait()
        if attempt is None or not attempt.leader:
            raise LockLost("this attempt has ended: nothing that it says counts any more")
        checkpoints = attempt.checkpoints
        if above is not None and attempt.leader not in above:
            if above:  # else it had ended, perhaps with its task
                _log.warning("a process that a task has not started has tried to speak for it (A6)")
            raise ConfigurationError("this process was not started by the task that it speaks for")
        match question.get("op"):
            case "checkpoint":
                await checkpoints.checkpoint(checked_checkpoint(question["value"]))
            case "checkpoint folder":
                await checkpoints.checkpoint_folder()
            case "progress":
                share = question.get("share")
                text = str(question.get("text", ""))[:MAX_TEXT_CHARACTERS]
                checkpoints.show_progress(None if share is None else checked_progress(float(share)), text)
            case other:
                raise ConfigurationError(f"this worker does not know {other!a}: it is of another version of jobq")
