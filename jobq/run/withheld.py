"""Variables that a process gets once it has hidden itself: what it starts with, others of its user can read (A6).

They lie in a file without a name, and that in the queue of a socket: a descriptor of the file itself could be opened in
/proc for as long as the variables could be read there.
"""

import json
import os
import socket
from collections.abc import Mapping

VARIABLE = "JOBQ_WITHHELD_FD"


def write_file(variables: Mapping[str, str]) -> int:
    """Return a file with these variables; raises OSError."""
    file = os.memfd_create("jobq-withheld")
    with open(os.dup(file), "w", encoding="ascii") as text:  # noqa: PTH123 - a descriptor
        json.dump(dict(variables), text)
    return file


def send_by_socket(file: int) -> int:
    """Return a socket, to be inherited, that gives the file to who reads it first; raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        socket.send_fds(ours, [b"\0"], [file])
    theirs.set_inheritable(True)
    return theirs.detach()


def receive_file(descriptor: int) -> int:
    """Return the file that such a socket gives, and close that; raises OSError."""
    with socket.socket(fileno=descriptor) as connection:
        _, (file,), _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    return file


def restore() -> None:
    """Hide this process, then give it the variables that it was started without; does nothing where there are none."""
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor is None:
        return
    from jobq.run.process.kernel import hide_from_same_user  # noqa: PLC0415 - Linux alone has what it imports

    hide_from_same_user()
    file = receive_file(int(descriptor))
    os.environ.update(json.loads(os.pread(file, os.fstat(file).st_size, 0)))
    os.close(file)
