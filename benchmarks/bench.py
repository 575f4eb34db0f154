"""`make bench`: jobq beside the bare thing it stands on, in one run; medians of several rounds, ratios above all.

python -m benchmarks.bench [sqlite] [claim] [spawn] [start] [worker] [run] [--rounds N] [--scale SHARE] [--json]
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import sections
from benchmarks.local import (
    bare_sqlite,
    claim_depth,
    run_rate,
    spawn_rate,
    startup,
    worker_rate,
)
from benchmarks.measure import Row
from benchmarks.sections import Options

SECTIONS: dict[str, Callable[[Path, Options], Iterable[Row]]] = {
    "sqlite": bare_sqlite.measure,
    "claim": claim_depth.measure,
    "spawn": spawn_rate.measure,
    "start": startup.measure,
    "worker": worker_rate.measure,
    "run": run_rate.measure,
}


def _in_a_folder(measure: Callable[[Path, Options], Iterable[Row]], options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        yield from measure(Path(folder), options)


def _prepare(options: Options, _: ExitStack) -> Mapping[str, sections.Section]:
    return {name: partial(_in_a_folder, measure, options) for name, measure in SECTIONS.items()}


if __name__ == "__main__":
    sections.main("Measure jobq against the bare thing it stands on.", _prepare, rounds=5)
