"""Python's logging on standard error, as much of it as was asked for."""

import logging
from collections.abc import Callable
from typing import Final, Self

from jobq.cli.display import terminal

_RECORDS_FROM: Final = {
    terminal.Verbosity.QUIET: logging.ERROR,
    terminal.Verbosity.NORMAL: logging.WARNING,
    terminal.Verbosity.VERBOSE: logging.DEBUG,
}
_EVENTS_FROM: Final = _RECORDS_FROM | {terminal.Verbosity.NORMAL: logging.INFO}


def least_event_level() -> int:
    """Return the level from which on events are shown."""
    return _EVENTS_FROM[terminal.verbosity()]


class LogRecords(logging.Handler):
    """Passes on records while entered: errors with `--quiet`, all that jobq logs with `--verbose`, else warnings.

    Args:
        take: shows one; must not block.
    """

    def __init__(self, take: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(_RECORDS_FROM[terminal.verbosity()])
        self._take = take

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        if self.level == logging.DEBUG:
            logging.getLogger("jobq").setLevel(logging.DEBUG)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass it on; logging's rule: a record that cannot be shown harms nobody."""
        try:
            self._take(record)
        except Exception:  # noqa: BLE001 - see above
            self.handleError(record)
