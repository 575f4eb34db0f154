"""How long commands take that do nothing, beside a Python that does nothing; sides take turns."""

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.commands import whole
from benchmarks.measure import Figure, Row, compared, in_turns
from benchmarks.sections import Options

TURNS = 15  # more than rounds: a start is short
BARE = "python -c pass"
COMMANDS: dict[str, tuple[str, ...]] = {
    "--version": ("--version",),
    "--help": ("--help",),
    "push -c true": ("bench", "push", "-c", "true"),
    "size": ("bench", "size"),
}


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield a row for each command."""
    script = Path(sys.executable).with_name("jobq")
    argvs = {BARE: (sys.executable, "-c", "pass")} | {name: (str(script), *more) for name, more in COMMANDS.items()}
    turns = min(TURNS, options.scaled(TURNS))
    found = in_turns(turns, {name: partial(_start, argv, folder) for name, argv in argvs.items()})
    for name in COMMANDS:
        yield compared(f"start, jobq {name}", {"jobq": found[name], BARE: found[BARE]}, "ms")


def _start(argv: Sequence[str], folder: Path, _: int) -> Figure:
    return whole(argv, {**os.environ, "JOBQ_HOME": str(folder)}).figure(1)
