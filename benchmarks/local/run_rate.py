"""Commands per second of `jobq run -n 8`, beside `xargs -P 8` and, where it is installed, GNU parallel -j 8.

All read the same lines and run each with the same shell, whole processes timed from start to exit, taking turns. Ours
claims and settles each line and supervises its process tree; the others do neither.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.commands import whole
from benchmarks.measure import Figure, Row, compared, in_turns
from benchmarks.sections import Options
from jobq.run.process.environment import shell_argv

LINES = 5000
SLOTS = 8


def measure(folder: Path, options: Options) -> Iterator[Row]:
    """Yield a row with our rate beside the others'."""
    lines = options.scaled(LINES)
    commands = folder / "commands"
    commands.write_text("true\n" * lines)
    *shell, _ = shell_argv("")
    # The PATH stays whole: GNU parallel ends with 255 where it does not find the programs that it needs itself.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    environment |= {"JOBQ_SCHEDULED_EVENTS": "off", "PARALLEL_SHELL": shell[0], "PARALLEL_HOME": str(folder)}
    argvs = {"jobq": [sys.executable, "-m", "jobq", "run", "-n", str(SLOTS)]}
    for name, more in (("xargs", ["-P", str(SLOTS), "-d", "\n", "-n", "1", *shell]), ("parallel", ["-j", str(SLOTS)])):
        if program := shutil.which(name):
            argvs[name] = [program, *more]
    sides = {name: partial(_run, argv, commands, environment) for name, argv in argvs.items()}
    yield compared(f"run, {lines} lines `true`, {SLOTS} slots", in_turns(options.rounds, sides))


def _run(argv: Sequence[str], commands: Path, environment: Mapping[str, str], _: int) -> Figure:
    with commands.open("rb") as lines:
        return whole(argv, environment, stdin=lines).figure(commands.read_text().count("\n"))
