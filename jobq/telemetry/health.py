"""A file that tells whether a worker is alive, for probes that have to be cheap: `jobq healthcheck` reads it.

The worker's event loop writes it, so a loop that is blocked, which renews no lease either, is told as unhealthy.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jobq.telemetry import probe

_log = logging.getLogger(__name__)
WRITE_SECONDS: Final = 5.0


class HealthFile:
    """Keeps a health file fresh while a worker lives, and takes it away when that ends.

    Args:
        path: the file; its folder must exist.
        state: tells state, busy slots and all slots.
        seconds: between two writes.
    """

    def __init__(self, path: Path, state: Callable[[], tuple[str, int, int]], seconds: float = WRITE_SECONDS) -> None:
        self._path = path
        self._state = state
        self._seconds = seconds
        self._failed = False

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            while True:
                self.write()
                await asyncio.sleep(self._seconds)
        finally:
            self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Write the file, as a whole or not at all; a failure is told once and harms no task."""
        state, busy, slots = self._state()
        told = {"boottime": probe.now(), "state": state, "busy": busy, "slots": slots}
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(told))
            beside.replace(self._path)
        except OSError as error:
            if not self._failed:
                _log.warning("cannot write the health file %s: %s; probes will fail", self._path, error.strerror)
            self._failed = True
        else:
            self._failed = False
