"""A progress bar on standard error: only on a terminal, and only for work that takes more than one step."""

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from jobq.cli.display import terminal
from jobq.formats import durations

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """Counts done work; a context manager.

    Args:
        label: what is done, such as `queueing`.
        total: how much there is, None = nobody knows.
    """

    def __init__(self, label: str, total: float | None = None) -> None:
        self._label = label
        self._total = total
        self._steps = 0
        self._began = time.monotonic()
        self._progress: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, completed: float, note: str) -> None:
        """Show how far the work has come; the first step shows nothing, since most work has no second."""
        self._steps += 1
        if self._steps == 1 or not sys.stderr.isatty() or terminal.verbosity() is terminal.Verbosity.QUIET:
            return
        if self._progress is None:
            self._progress = _started()
            self._task = self._progress.add_task(self._label, total=self._total, note=note)
        self._progress.update(self._task, completed=completed, note=note)

    def show_rate(self, completed: float, count: int, what: str, *, before: float = 0.0, earlier: int = 0) -> None:
        """As `show`, with how fast it goes and how long it takes.

        Args:
            completed: how much of the total is done.
            count: how many things that were, those of earlier runs included.
            what: what they are, such as `tasks`.
            before: how much of the total earlier runs have done.
            earlier: how many things that were.
        """
        seconds = time.monotonic() - self._began
        note = f"{count} {what}"
        if seconds > 0 and count > earlier:
            note += f", {(count - earlier) / seconds:,.0f}/s"
            if self._total is not None and completed > before:
                left = seconds * max(0.0, self._total - completed) / (completed - before)
                note += f", {durations.show(round(left))} left"
        self.show(completed, note)


def _started() -> "Progress":
    from rich.console import Console  # noqa: PLC0415 - 90 ms that only long work on a terminal pays
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    progress.start()
    return progress
