"""What the product logs during a run."""

import logging
from collections.abc import Callable


class ErrorsTo(logging.Handler):
    """Pass on what the product logs as an error while entered, and nothing else; a traceback is a fault of its own."""

    def __init__(self, take: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.ERROR)
        self._take = take
        self._loggers = [logging.getLogger(name) for name in ("jobq", "jobq_azure")]
        self._asyncio = logging.getLogger("asyncio")

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self._take(record)

    def __enter__(self) -> None:
        self._before = [(each.level, each.propagate) for each in self._loggers], self._asyncio.level
        for logger in self._loggers:
            logger.addHandler(self)
            logger.setLevel(logging.ERROR)
            logger.propagate = False
        self._asyncio.setLevel(logging.CRITICAL + 1)

    def __exit__(self, *_: object) -> None:
        before, others = self._before
        for logger, (level, propagates) in zip(self._loggers, before, strict=True):
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagates
        self._asyncio.setLevel(others)
