"""A leader as the worker sees it: what it reports, and what it can be asked. The guardian never imports this."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterable
from typing import Final

from jobq.run.guardian import protocol
from jobq.run.guardian.protocol import Message
from jobq.run.process.spawner import ExitStatus, StatusLost, exec_bytes, is_readable, nothing

_log: Final = logging.getLogger(__name__)


class GuardedProcess:
    """A leader that the guardian owns; see `jobq.run.process.spawner.Process`.

    Args:
        send: sends a message to the guardian.
        number: the id that messages name it by.
        cwd: the working directory of its launch.
        on_gone: see `Launch.on_gone`.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        number: int,
        cwd: str | None,
        on_gone: Callable[[], None] = nothing,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.pid = 0
        self.started: asyncio.Future[OSError | StatusLost | None] = loop.create_future()
        self.ended: asyncio.Future[ExitStatus] = loop.create_future()
        self.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody may be waiting
        self._send = send
        self._cwd = cwd
        self.is_gone: Final = on_gone
        self._pidfd = protocol.LOST

    async def wait(self) -> ExitStatus:
        """See `Process.wait`."""
        return await asyncio.shield(self.ended)

    def has_exited(self) -> bool:
        """See `Process.has_exited`."""
        return self.ended.done() or (self._pidfd != protocol.LOST and is_readable(self._pidfd))

    def signal(self, number: int) -> None:
        """See `Process.signal`."""
        if not self.ended.done():
            self._send({"op": "signal", "id": self.number, "number": int(number)})

    def kill(self) -> None:
        """See `Process.kill`."""
        if self.ended.done():
            return
        self._send({"op": "kill", "id": self.number})
        if self._pidfd != protocol.LOST:  # the guardian may be stopped: the leader at least dies now, by a handle (P4)
            with contextlib.suppress(
                ProcessLookupError, PermissionError
            ):  # it became another user: reported as a survivor
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def extend(self, deadline: float) -> None:
        """See `Process.extend`."""
        if not self.ended.done():
            self._send({"op": "extend", "id": self.number, "deadline": deadline})

    def disown(self) -> None:
        """Neither signal nor watch it any more: it is another process's."""
        self._close()

    def has_started(self, pid: int, pidfd: int) -> None:
        """Note its number, and the handle to it, which is closed here."""
        self.pid, self._pidfd = pid, pidfd
        self.started.set_result(None)

    def has_failed(self, number: int, at: str) -> None:
        """Let its starter know what kept it from starting."""
        error = OSError(number, os.strerror(number))
        error.filename = self._cwd if at == "cwd" else None
        self.started.set_result(error)
        self.ended.set_exception(StatusLost("it was never started"))
        self.is_gone()

    def has_ended(self, message: Message) -> None:
        """Let everyone know who waits for its end."""
        self._close()
        if message["survivors"]:
            _log.error("%d processes survived SIGKILL after task process %d", message["survivors"], self.pid)
        self.ended.set_result(
            ExitStatus(
                exit_code=message["code"],
                signal=message["signal"],
                cpu_seconds=message["cpu_seconds"],
                max_rss_bytes=message["max_rss_bytes"],
                overdue=message["killed"] == "deadline",
                survivors=message["survivors"],
            )
        )
        if not message["survivors"]:
            self.is_gone()

    def is_lost(self, why: str) -> None:
        """Let everyone know that the guardian is gone, and kill what can be killed from here."""
        self.kill()
        self._close()
        if not self.started.done():
            self.started.set_result(StatusLost(f"the guardian is gone: {why}; nobody knows whether this had started"))
        if not self.ended.done():
            self.ended.set_exception(StatusLost(f"the guardian is gone: {why}"))

    def _close(self) -> None:
        protocol.close_all([self._pidfd])
        self._pidfd = protocol.LOST


def refuse_unsendable(texts: Iterable[str], names: Iterable[str]) -> None:
    """Raise ValueError for what exec would refuse; JSON would carry it to the guardian all the same.

    Args:
        texts: arguments, a folder, and values of variables.
        names: of these variables.
    """
    if any(b"\0" in exec_bytes(text) for text in (*texts, *names)):
        raise ValueError("embedded null byte")
    if any("=" in name or not name for name in names):
        raise ValueError("illegal environment variable name")
