"""`make bench OF=http_service`: the service beside the bare SQL backend below it, in one run; sides take turns.

One process of the service, one client process, tasks that do nothing: claims and settles as a worker with so many
slots makes them, and how long each call takes. All of it, the database too, shares this machine's cores; CPU is that of
the client and of the service, without PostgreSQL's.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import sections
from benchmarks.measure import Figure, Meter, Row, compared, in_turns, median
from benchmarks.sections import Options
from benchmarks.slots import Drained, drain, fill
from jobq.settings import Settings
from jobq.spec import resolve
from tests.postgres.server import session
from tests.service.server import running

_AIM: Final = 0.3  # of the bare backend, for each process of the service


async def measured(spec: str, count: int, slots: int, service: tuple[int, ...]) -> tuple[Figure, Drained]:
    """Return one round of a queue, warm."""
    meter = Meter(*service)
    async with resolve(spec, Settings()) as queue:
        await queue.create()
        await queue.clear()
        await fill(queue, 2 * slots)
        await drain(queue, 2 * slots, slots, Meter())
        await fill(queue, count)
        took = await drain(queue, count, slots, meter)
    return meter.figure(count), took


def _section(store: str, specs: Mapping[str, str], service: int, slots: int, count: int, rounds: int) -> Iterator[Row]:
    latencies = {name: Drained() for name in specs}

    def side(name: str, _: int) -> Figure:
        figure, took = asyncio.run(measured(specs[name], count, slots, (service,) if name == "service" else ()))
        latencies[name].claims += took.claims
        latencies[name].settles += took.settles
        return figure

    figures = in_turns(rounds, {name: partial(side, name) for name in specs})
    row = compared(f"{store}, {slots} slots", figures)
    share = median(figures["service"]).rate / median(figures["bare"]).rate
    yield {**row, "aim": f"{_AIM} {'reached' if share >= _AIM else 'missed'}"}
    for name, took in latencies.items():
        yield {
            "what": f"    {name}, ms, median/99th",
            "claim": _percentiles(took.claims),
            "settle": _percentiles(took.settles),
        }


def _percentiles(seconds: list[float]) -> str:
    values = sorted(seconds)
    return "/".join(f"{1e3 * values[min(len(values) - 1, int(share * len(values)))]:.1f}" for share in (0.5, 0.99))


def _prepare(options: Options, stack: ExitStack) -> Mapping[str, sections.Section]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobq-bench-")))
    database = stack.enter_context(session())
    found: dict[str, sections.Section] = {}
    for store, place in (("PostgreSQL", database.url), ("SQLite", f"sqlite://{folder}/jobs.db")):
        served = stack.enter_context(running(f"{place}/served", folder, "--rate-limit", "1000000"))
        assert served.process is not None
        specs = {"service": f"{served.url}/served", "bare": f"{place}/bare"}
        for slots, count in ((1, 500), (10, 2000), (100, 6000)):
            found[f"{store}-{slots}"] = partial(
                _section, store, specs, served.process.pid, slots, options.scaled(count), options.rounds
            )
    return found


if __name__ == "__main__":
    sections.main(__doc__, _prepare, rounds=3)
