"""What worker and guardian say to each other: frames on a stream socket, versioned, few, strict.

A frame is a length (4 bytes, big-endian) and a JSON object with the key `op`; descriptors ride on its first byte
(SCM_RIGHTS), always as many at a time as the direction says. `id` is an integer that names a task within one
connection; it is never used twice.

Worker to guardian, two descriptors with a spawn:
    spawn   id, argv, env, unset, cwd (or null), deadline (or null), and two descriptors: stdout and stderr
            env, unset: what the environment has otherwise, and no more, than that of the spawn before
    extend  id, deadline          CLOCK_BOOTTIME in seconds, by which the tree must be dead
    clock   id (0)                before the first spawn: deadlines are of CLOCK_MONOTONIC, since a file of this machine
            is the store and leaves out suspends, too; a jump of the wall clock kills nothing (rule 12)
    signal  id, number            to the task's process group
    kill    id                    SIGKILL to the whole tree
    ping    id (0)                asks for a pong
Guardian to worker, one descriptor with a handle:
    hello   version, pid, group, why
            first of all; group = the path of the control group that it is in, or empty; why there is none, if it was
            asked for one
    pong                          whatever it says is as good a sign of life; this is for when it has nothing to say
    started id, pid, handle       handle = true: a descriptor comes along, the leader's pidfd, so that the worker can
            kill by itself; false: the leader has ended meanwhile, or no descriptor was left
    failed  id, errno, at         nothing was started, and nothing is left of the try; at = "cwd" or "program"
    ended   id, code or signal, cpu_seconds, max_rss_bytes (or null), killed ("", "asked", "deadline"), survivors
            the tree is dead and reaped; survivors counts processes that not even SIGKILL could end in time
    gone    id                    after an end with survivors: now nothing of that tree is left for certain

What breaks these rules ends the connection: for the guardian that is the death of the worker.
"""

import array
import json
import os
import socket
import struct
from collections import deque

TYPE_CHECKING = False  # as in `typing`, which costs a guardian a sixth of its start
if TYPE_CHECKING:
    from typing import Any, NoReturn

VERSION = 7
MAX_FRAME_BYTES = 16 * 1024 * 1024  # several times what exec takes
SPAWN_DESCRIPTORS = 2
HANDLE_DESCRIPTORS = 1
LOST = -1  # stands for a descriptor that the kernel could not give us: our table was full
_READ_BYTES = 64 * 1024
_MAX_DESCRIPTORS = 8
_LENGTH = struct.Struct("!I")
HEADER_BYTES = _LENGTH.size

Message = dict[str, "Any"]


class WireError(Exception):
    """The other side does not keep the protocol."""


def encode(message: Message) -> bytes:
    """Return the frame of a message; raises WireError when it is too large."""
    body = _encoder.encode(message).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(body)} bytes, at most {MAX_FRAME_BYTES} are sent")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Message:
    """Return the message in a frame; raises WireError."""
    try:
        message = _decoder.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise WireError("no message: an object with the key op was expected")
    return message


def difference(former: dict[str, str], environment: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return what an environment has otherwise than a former one, and the names that it has no more."""
    changed = {name: value for name, value in environment.items() if former.get(name) != value}
    return changed, [name for name in former if name not in environment]


def _refuse(name: str) -> "NoReturn":
    raise ValueError(f"{name} is no JSON")  # NaN and Infinity, which Python reads by itself


_encoder = json.JSONEncoder(separators=(",", ":"))  # made once: `json.dumps` would make one for each message
_decoder = json.JSONDecoder(parse_constant=_refuse)


class Receiver:
    """Cuts frames out of a stream and keeps the descriptors that came with them, in order.

    Args:
        connection: a non-blocking stream socket; call `read` when it is readable.
        set_size: how many descriptors the other side sends at a time.
    """

    def __init__(self, connection: socket.socket, set_size: int) -> None:
        self._connection = connection
        self._set_size = set_size
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def read(self) -> bool:
        """Take in what has come; False at the end of the stream. Raises WireError, OSError."""
        try:
            data, ancillary, flags, _ = self._connection.recvmsg(
                _READ_BYTES, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return True
        received = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
        self._descriptors.extend(received)
        if flags & socket.MSG_CTRUNC and len(received) < self._set_size:
            # One call never takes more than one set (unix(7)), so it is known which one was cut short.
            self._descriptors.extend([LOST] * (self._set_size - len(received)))
        elif len(received) not in {0, self._set_size}:
            raise WireError(f"{len(received)} descriptors came at a time, {self._set_size} are sent")
        self._buffer += data
        return bool(data)

    def next(self) -> Message | None:
        """Return the next message that is complete; None = more must be read. Raises WireError."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise WireError(f"a frame of {length} bytes was announced, at most {MAX_FRAME_BYTES} are read")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
        del self._buffer[:end]
        return decode(body)

    def take_descriptors(self) -> list[int]:
        """Return the next set of descriptors, some perhaps LOST; the caller owns them. Raises WireError without one."""
        if len(self._descriptors) < self._set_size:
            raise WireError(f"{self._set_size} descriptors were announced, {len(self._descriptors)} came")
        return [self._descriptors.popleft() for _ in range(self._set_size)]

    def close_descriptors(self) -> None:
        """Close the descriptors that nobody took."""
        close_all(self._descriptors)
        self._descriptors.clear()


class Sender:
    """Writes frames without blocking; what the socket does not take waits in memory.

    Args:
        connection: a non-blocking stream socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    @property
    def waiting(self) -> int:
        """How many messages are not written yet; `flush` when the socket is writable."""
        return len(self._waiting)

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Queue a message and write what can be written; the descriptors are closed once sent, or when it fails.

        Raises:
            WireError: the message is too large; nothing was sent.
            OSError: the other side is gone.
        """
        try:
            frame = encode(message)
        except WireError:
            close_all(descriptors)
            raise
        self._waiting.append((memoryview(frame), descriptors))
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes now; raises OSError when the other side is gone."""
        while self._waiting:
            data, descriptors = self._waiting[0]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                sent = self._connection.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                raise
            close_all(descriptors)  # they go with the first byte
            if sent == len(data):
                self._waiting.popleft()
            else:
                self._waiting[0] = (data[sent:], ())

    def close(self) -> None:
        """Forget what waits, and close its descriptors."""
        for _, descriptors in self._waiting:
            close_all(descriptors)
        self._waiting.clear()


def close_all(descriptors: "deque[int] | tuple[int, ...] | list[int]") -> None:
    """Close descriptors, except those that never came."""
    for descriptor in descriptors:
        if descriptor != LOST:
            os.close(descriptor)
