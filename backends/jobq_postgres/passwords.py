"""The file of passwords: errors in our own words where it cannot serve."""

import os
import stat
from pathlib import Path

from jobq.errors import ConfigurationError


def check() -> None:
    """Refuse a file of passwords that the client library would pass over, with a warning in Python's words or none.

    Raises:
        ConfigurationError: PGPASSFILE names no file, or others may read it, or ~/.pgpass.
    """
    if "PGPASSWORD" in os.environ:
        return  # none is looked into
    named = os.environ.get("PGPASSFILE")
    try:
        mode = (Path(named) if named else Path("~/.pgpass").expanduser()).stat().st_mode
    except (OSError, ValueError, RuntimeError):  # ValueError: a NUL in the name; RuntimeError: nobody knows our home
        if not named:
            return  # it need not be there
        mode = 0
    name = "the file that PGPASSFILE names" if named else "~/.pgpass"
    if not stat.S_ISREG(mode):
        raise ConfigurationError(f"{name} is not there, or is no plain file; passwords cannot be read from it")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"{name} can be read by others, so passwords in it do not count; run: chmod 600 on it")
