"""A file that says whether a worker is alive, for probes that have to be cheap: `jobq healthcheck` reads it.

The worker's event loop writes it, so a loop that is blocked, which renews no lease either, counts as unhealthy.
"""

import asyncio
import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jobq.telemetry import probe

_log = logging.getLogger(__name__)
WRITE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0  # a change is written so soon
_MODE: Final = 0o644  # a probe may be another user


class HealthFile:
    """Keeps a health file fresh while a worker lives, and takes it away when that ends.

    Args:
        path: the file; its folder must exist.
        state: returns state, busy slots and all slots.
        seconds: between two writes.
    """

    def __init__(self, path: Path, state: Callable[[], tuple[str, int, int]], seconds: float = WRITE_SECONDS) -> None:
        self._path = path
        self._state = state
        self._seconds = seconds
        self._failed = False
        self._written = ""

    async def run(self) -> None:
        """Write after changes, and every so often, until cancelled."""
        written, due = None, 0.0
        try:
            while True:
                if (state := self._state()) != written or probe.now() >= due:
                    self.write()
                    written, due = state, probe.now() + self._seconds
                await asyncio.sleep(min(_LOOK_SECONDS, self._seconds))
        finally:
            self._remove()

    def write(self) -> None:
        """Write the file, as a whole or not at all; a failure is logged once and harms no task."""
        state, busy, slots = self._state()
        sign = {"boottime": probe.now(), "state": state, "busy": busy, "slots": slots}
        try:
            text = json.dumps(sign)
            # Of a name that nobody can guess, and never through a link: others may write into the folder.
            descriptor, beside = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)
                    os.fchmod(descriptor, _MODE)
                Path(beside).replace(self._path)
            except BaseException:
                Path(beside).unlink(missing_ok=True)
                raise
            self._written = text
        except OSError as error:
            if not self._failed:
                _log.warning("cannot write the health file %s: %s; probes will fail", self._path, error.strerror)
            self._failed = True
        else:
            self._failed = False

    def _remove(self) -> None:
        """Remove our own last word, but not that of a worker which was given the same file."""
        with contextlib.suppress(OSError):
            if self._path.read_text() == self._written:
                self._path.unlink()
