"""A worker that says what it wants to a real guardian, over the real socket."""

import array
import os
import socket
import subprocess
import sys
from typing import Any

from jobq.run.guardian import protocol
from jobq.run.guardian.protocol import Receiver
from tests.guardian.stage import ENV, SECONDS, hostile, living, until

SPAWN = {"op": "spawn", "id": 2, "argv": ["true"], "env": {}, "cwd": None, "deadline": None}


class Peer:
    """A worker that says what it wants to a real guardian."""

    def __init__(self, *program: str) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            program = program or (sys.executable, "-P", "-m", "jobq.run.guardian")
            command = [*program, "--attached", str(theirs.fileno())]
            self.popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)
        self.socket.settimeout(SECONDS)
        self._receiver = Receiver(self.socket, protocol.HANDLE_DESCRIPTORS)
        assert self.hear()["op"] == "hello"

    def hear(self) -> dict[str, Any]:
        while (message := self._receiver.next()) is None:
            assert self._receiver.read(), "the guardian ended the connection"
        if message.get("handle"):
            protocol.close_all(self._receiver.take_descriptors())
        return message

    def say(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            sent = self.socket.sendmsg([data], ancillary)
            self.socket.sendall(data[sent:])
        except OSError:
            pass  # the guardian has ended the connection meanwhile

    def spawn(self, mark: str, number: int = 1, kind: str = "setsid") -> None:
        message = {"op": "spawn", "id": number, "argv": hostile(kind, mark), "env": ENV, "cwd": None, "deadline": None}
        null = os.open("/dev/null", os.O_RDWR)
        self.say(protocol.encode(message), (null, null))
        os.close(null)
        assert self.hear()["op"] == "started"
        until(lambda: len(living(mark)) == 2)

    def is_ended(self) -> bool:
        """Read until the guardian ends the connection."""
        try:
            while self._receiver.read():
                self._receiver.close_descriptors()
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self._receiver.close_descriptors()
        self.socket.close()
        try:
            assert self.popen.wait(SECONDS) == 0
        finally:
            self.popen.kill()
            self.popen.wait()
