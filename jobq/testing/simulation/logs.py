"""What the product logs during a run."""

import logging
from collections.abc import Callable


class ErrorsTo(logging.Handler):
    """Pass on what the product logs as an error while entered, and nothing else; a traceback is a fault of its own."""

    def __init__(self, take: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.ERROR)
        self._take = take
        self._logger = logging.getLogger("jobq")
        self._asyncio = logging.getLogger("asyncio")

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self._take(record)

    def __enter__(self) -> None:
        self._before = self._logger.level, self._logger.propagate, self._asyncio.level
        self._logger.addHandler(self)
        self._logger.setLevel(logging.ERROR)
        self._logger.propagate = False
        self._asyncio.setLevel(logging.CRITICAL + 1)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        level, self._logger.propagate, others = self._before
        self._logger.setLevel(level)
        self._asyncio.setLevel(others)
