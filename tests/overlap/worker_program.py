"""jobq's worker under orders: `python -m tests.overlap.worker_program FOLDER SLOTS RULE`, below a guardian.

It runs the real Worker over FaultyBackend over SqliteBackend. Orders come as JSON lines on standard input, what
befalls it goes out as JSON lines on standard output:

    {"do": "strike", "fault": "refuse", "verbs": ["renew"]}    {"said": "injected"}, then {"said": "struck", ...};
                                                               in place of what was ordered before
    {"do": "lift"}                                             {"said": "lifted"}
    {"do": "block", "seconds": 2.2}                            {"said": "blocking"}, then {"said": "unblocked"}

RULE breaks one of jobq's, so that the campaign can be seen to find it: `hold-beyond-the-lease`, `no-guardian`; `none`.
"""

import asyncio
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from jobq.backend import Delivery
from jobq.clock import SystemClock
from jobq.lease.timing import LeaseTiming
from jobq.run.worker.worker import Worker
from jobq.settings import Settings
from jobq.testing.fault_script import Planned
from jobq.testing.faults import Fault, Faults, FaultyBackend
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host
from tests.process.stage import QUICK

QUEUE = "overlap"


def say(said: str, **what: object) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(1, f"{json.dumps({'said': said, 'at': now, **what})}\n".encode())


class TellingFaults(Faults):
    """Says of each verb and subject, once for each order, that a fault struck it."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[tuple[str, str]] = set()

    def begin(self, verb: str, subject: str) -> Planned:
        planned = super().begin(verb, subject)
        if planned.fault is not None and (verb, subject) not in self._told:
            self._told.add((verb, subject))
            say("struck", verb=verb, task=subject)
        return planned

    def strike(self, fault: Fault, verbs: list[str]) -> None:
        self._told.clear()
        self.clear()
        self.release()
        for verb in verbs:
            self.always(verb, fault)


class TellingBackend(SqliteBackend):
    """Says what it was granted, which the layer above may never hear of."""

    async def receive(self, max_tasks: int, lease: timedelta | None, wait: timedelta) -> list[Delivery]:
        deliveries = await super().receive(max_tasks, lease, wait)
        for delivery in deliveries:
            say("granted", task=delivery.id, attempt=delivery.deliveries)
        return deliveries


class Orders(asyncio.Protocol):
    """Obeys the lines on standard input; without one who gives the orders there is no reason to live."""

    def __init__(self, faults: TellingFaults) -> None:
        self._faults = faults
        self._unread = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def eof_received(self) -> None:
        os._exit(1)

    def _obey(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "strike":
                self._faults.strike(Fault(order["fault"]), order["verbs"])
                say("injected")
            case "lift":
                self._faults.clear()
                self._faults.release()
                say("lifted")
            case "block":
                say("blocking")
                time.sleep(order["seconds"])  # the fault itself: the event loop stands still
                say("unblocked")


def settings(slots: int, rule: str) -> Settings:
    ours: dict[str, Any] = {
        **QUICK,
        "num_workers": slots,
        "idle_timeout": timedelta(hours=1),
        "max_consecutive_failures": 0,
        "guardian": "off" if rule == "no-guardian" else "on",
    }
    return Settings.from_environment(**ours)


async def main(folder: Path, slots: int, rule: str) -> None:
    if rule == "hold-beyond-the-lease":
        LeaseTiming.hold = property(lambda timing: 1.6 * timing.lease)  # type: ignore[method-assign, assignment] # breaks rule 2
    faults = TellingFaults()
    file = StoreFile(path=folder / "queue.db", clock=SystemClock(), host=this_host())
    async with FaultyBackend(TellingBackend(file, QUEUE), faults) as backend:
        await asyncio.get_running_loop().connect_read_pipe(lambda: Orders(faults), sys.stdin)
        say("ready", pid=os.getpid())
        await Worker(backend, settings(slots, rule)).run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
