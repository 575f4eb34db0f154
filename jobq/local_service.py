"""A service on this machine's loopback, and where it leaves its owner's commands a token."""

import ipaddress
from pathlib import Path

from jobq.settings import Settings, user_home


def is_loopback(host: str) -> bool:
    """Return whether a host, a name or an address, is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_file(settings: Settings, port: int) -> Path:
    """Return the file with the token of the service that listens on this port, which its owner alone can read."""
    return user_home(settings) / "serve" / f"{port}.token"
