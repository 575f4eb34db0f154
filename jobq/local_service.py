"""A service on this machine's loopback: where it leaves its owner's commands a token, and whose it is.

While it is down any user of the machine can listen on its port. What is sent there in good faith would be read by that
user, and what is taken from there be run (A8): so a listener counts only if it is this user's own, or root's.
"""

import ipaddress
import os
from pathlib import Path
from typing import Final

from jobq.settings import Settings, user_home

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
SHOWS_LISTENERS: Final = _TABLES[0].exists()  # who listens
_LISTENS: Final = "0A"
_ANY: Final = ("0.0.0.0", "::", "::ffff:0.0.0.0")  # noqa: S104 - looked for, not listened on
_USUAL: Final = "127.0.0.1"
_NAMED: Final = (_USUAL, "::1")  # what `localhost` may lead to
LOOPBACK: Final = frozenset({"localhost", *_NAMED})  # how this machine is called on itself


def is_loopback(host: str) -> bool:
    """Return whether a host, a name or an address, is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_folder(settings: Settings) -> Path:
    """Return where the services of this user leave their owner's tokens."""
    return user_home(settings) / "serve"


def token_file(settings: Settings, host: str, port: int) -> Path:
    """Return the file with the token of the service that listens there, which its owner alone can read.

    Args:
        settings: of the user.
        host: an address of loopback, or `localhost`: then it is the file of the first address that is listened on, or,
            where nobody knows that, the one that was written last.
        port: of the service.
    """
    if host == "localhost":
        files = [token_file(settings, each, port) for each in _NAMED]
        if listening := [file for each, file in zip(_NAMED, files, strict=True) if is_ours(each, port) is not None]:
            return listening[0]
        return max((each for each in files if each.exists()), key=lambda each: each.stat().st_mtime, default=files[0])
    address = str(ipaddress.ip_address(host))
    return token_folder(settings) / (f"{port}.token" if address == _USUAL else f"{address}-{port}.token")


def is_ours(host: str, port: int) -> bool | None:
    """Return whether it is this user, or root, who listens there; None = nobody does."""
    addresses = _NAMED if host == "localhost" else (host, f"::ffff:{host}") if "." in host else (host,)
    wanted = {f"{_in_table(each)}:{port:04X}" for each in (*addresses, *_ANY)}
    owners = set()
    for table in _TABLES:
        lines = table.read_text("ascii").splitlines()[1:] if table.exists() else []
        for _, local, _, state, _, _, _, owner, *_ in map(str.split, lines):
            if state == _LISTENS and local in wanted:
                owners.add(int(owner))
    return owners <= {0, os.getuid()} if owners else None


def _in_table(address: str) -> str:
    """Return an address as the kernel writes it there: words of four bytes, the last one first."""
    packed = ipaddress.ip_address(address).packed
    return b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4)).hex().upper()
