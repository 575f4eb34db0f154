"""Who is at the other end of a Unix socket."""

import socket
import struct
from typing import Final, Protocol

_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred, unix(7)


class HasOptions(Protocol):
    """A socket, or what asyncio shows of one."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes:
        """Return an option's value."""
        ...


def peer_of(connection: HasOptions) -> int | None:
    """Return the number of the process that connected; None where the system does not say it this way (macOS)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid: int = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    return pid
