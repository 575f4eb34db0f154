"""Strikes real workers, below their watchers, and reads from the store and the tasks' own records what came of it."""

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from jobq.run.spawn.dead_workers import kill_what_dead_workers_left
from tests.containment import stamping
from tests.containment.blows import THREE, Blow, Case, Processes
from tests.guardian.stage import state, until, worker_below
from tests.overlap import store_truth

LEASE_SECONDS: Final = 2.0
BLOW_SECONDS: Final = 1.25 * LEASE_SECONDS  # how long a blow lasts that ends by itself
SETTLED_SECONDS: Final = 10.0  # of the issue: what lives on then is a survivor
FINISH_SECONDS: Final = 30.0
_STAMPING: Final = f"{sys.executable} -I -S {stamping.__file__} $FOLDER $JOBQ_TASK_ID $JOBQ_ATTEMPT"
TREES: Final = {
    "leader with child": f"{_STAMPING} & {_STAMPING}; wait",
    "pipeline": f"{_STAMPING} | {_STAMPING}",
    "escapee that scrubbed its environment": "env -i setsid " + f"{_STAMPING} & {_STAMPING}; true",
}
TARGETS: Final = ("worker", "guardian", "leader")
VERBS: Final = ("kill", "stop", "stop and continue", "starve")
SINGLES: Final[list[Case]] = [(Blow(*blow),) for blow in product(VERBS, TARGETS)]
PAIRS: Final[list[Case]] = [
    (first, second) for (first,), (second,) in product(SINGLES, SINGLES) if first.target != second.target
]


@dataclass
class Outcome:
    """What came of one case; times in seconds, as they are when nothing is wrong: at most 0.

    Attributes:
        overlap: how long two attempts of one task lived at once.
        past_expiry: the last moment of an attempt that lost its lease, less that lease's expiry in the store.
        survivors: processes that lived on though their worker or guardian could not guard them.
        unfinished: tasks that never came to their end.
    """

    case: Case
    overlap: float = 0.0
    past_expiry: float | None = None
    survivors: int = 0
    unfinished: int = 0

    @property
    def is_good(self) -> bool:
        return not (self.overlap > 0 or (self.past_expiry or 0) > 0 or self.survivors or self.unfinished)

    def __str__(self) -> str:
        name = ", then ".join(map(str, self.case))
        past = "-" if self.past_expiry is None else f"{self.past_expiry:+.2f}"
        seen = f"overlap {self.overlap:.2f}  past expiry {past:>6}  survivors {self.survivors}"
        return f"{name:52} {seen}  unfinished {self.unfinished}"


class Victim:
    """A `jobq worker` with one tree of each kind."""

    def __init__(self, case: Case, queue: "Queue") -> None:
        self.case = case
        self.process = queue.worker(len(TREES))
        self.processes = Processes(self.process.pid)
        self.tasks: set[str] = set()

    def is_ready(self) -> bool:
        """Return whether all its trees live; note who they are."""
        self.tasks = {task for pid in self.processes.leaders() if (task := _variable(pid, "JOBQ_TASK_ID"))}
        return len(self.tasks) == len(TREES)

    def is_alone(self) -> bool:
        """Return whether nobody is left who could see to what it left."""
        return {Blow("kill", target) for target in THREE} <= set(self.case)

    def guards(self) -> bool:
        """Return whether somebody can still keep its trees' leases."""
        return state(self.processes.guardian) not in "ZX" and state(self.processes.worker) not in "ZXT"

    def end(self) -> None:
        self.processes.resume()
        self.process.terminate()
        try:
            self.process.wait(FINISH_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.processes.close()


class Queue:
    """An embedded queue of its own, whose store records all leases."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        (folder / "lives").mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
        own = {"HOME": folder, "VISIBILITY_TIMEOUT": f"{LEASE_SECONDS:g}s", "SCHEDULED_EVENTS": "off"}
        short = {"ALLOW_SHORT_LEASE": "1", "KILL_MARGIN": "0.3s", "SCHEDULE_MARGIN": "0.1s", "BACKOFF": "0.05s"}
        self._environment = kept | {f"JOBQ_{name}": str(value) for name, value in (own | short).items()}
        self._environment |= {"FOLDER": str(folder), **settings}
        self.run("create")
        store_truth.record_from_now_on(self.store)

    @property
    def store(self) -> Path:
        return self.folder / "queues.db"

    def run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "jobq", "demo", *arguments]
        subprocess.run(command, env=self._environment, check=True, capture_output=True)

    def worker(self, slots: int) -> "subprocess.Popen[bytes]":
        options = ["-n", str(slots), "--idle-timeout", "10m", "--max-consecutive-failures", "0", "--stop-grace", "1s"]
        with (self.folder / "workers.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "jobq", "demo", "worker", *options],
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def start_elsewhere(self) -> None:
        """Start a worker that has nothing to do, on another queue of this user's."""
        home = {"JOBQ_HOME": str(self.folder / "elsewhere")}
        for arguments in (("create",), ("worker",)):
            command = [sys.executable, "-m", "jobq", "demo", *arguments]
            subprocess.run(command, env=self._environment | home, check=True, capture_output=True)

    def lives(self) -> dict[str, dict[int, list[tuple[int, float, float]]]]:
        """Return number, first and last moment of each process, by task and attempt."""
        found: dict[str, dict[int, list[tuple[int, float, float]]]] = defaultdict(lambda: defaultdict(list))
        for path in (self.folder / "lives").iterdir():
            task, attempt, pid = path.name.split(".")
            if len(stamps := path.read_bytes()) == 16:
                first, last = (int.from_bytes(part, "little") / 1e9 for part in (stamps[:8], stamps[8:]))
                found[task][int(attempt)].append((int(pid), first, last))
        return found


def strike(folder: Path, cases: Sequence[Case], **settings: str) -> list[Outcome]:
    """Strike as many workers at once, with one beside them that takes what they lose; return what came of each.

    Where one lost all its three processes another worker is started at once.
    """
    queue = Queue(folder, **settings)
    with ExitStack() as stack:
        victims = []
        for case in cases:
            victims.append(Victim(case, queue))
            stack.callback(victims[-1].end)
        commands = [word for command in TREES.values() for word in ("-c", command)]
        queue.run("push", *commands * len(cases))
        for victim in victims:
            until(victim.is_ready, FINISH_SECONDS)
            victim.processes.aim()
        rival = queue.worker(len(cases) * len(TREES))
        stack.callback(rival.wait, FINISH_SECONDS)
        stack.callback(rival.terminate)
        worker_below(rival.pid)
        until(lambda: all(len(queue.lives()[task][1]) == 2 for victim in victims for task in victim.tasks))
        threads = [thread for victim in victims for thread in victim.processes.strike(victim.case, BLOW_SECONDS)]
        struck = time.monotonic()
        if any(victim.is_alone() for victim in victims):
            queue.start_elsewhere()
        for thread in threads:
            thread.join()
        outcomes = {id(victim): Outcome(victim.case) for victim in victims}
        with suppress(AssertionError):  # those that live on are counted
            until(lambda: not any(_unguarded(queue, victim) for victim in victims), SETTLED_SECONDS)
        time.sleep(max(0.0, struck + BLOW_SECONDS - time.monotonic()))  # what lives on unseen gets its time
        for victim in victims:
            outcomes[id(victim)].survivors = len(_unguarded(queue, victim))
            victim.processes.resume()
        (folder / "end").touch()
        with suppress(AssertionError):  # those that are unfinished are counted
            until(lambda: set(store_truth.states(queue.store).values()) == {"done"}, FINISH_SECONDS)
        kill_what_dead_workers_left()  # control groups that are empty, and were left to the next start
        _judge(queue, [(victim, outcomes[id(victim)]) for victim in victims])
    return list(outcomes.values())


def _unguarded(queue: Queue, victim: Victim) -> list[int]:
    """Return the processes of its first attempts that live though nobody guards them."""
    if victim.guards():
        return []
    lives = queue.lives()
    first = [life for task in victim.tasks for life in lives[task][1]]
    return [pid for pid, _, _ in first if state(pid) not in "ZX"]


def _judge(queue: Queue, victims: Sequence[tuple[Victim, Outcome]]) -> None:
    lives, leases, states = queue.lives(), store_truth.leases(queue.store), store_truth.states(queue.store)
    for victim, outcome in victims:
        for task in victim.tasks:
            outcome.unfinished += states[task] != "done"
            for attempt, processes in lives[task].items():
                last = max(moment for _, _, moment in processes)
                later = [first for number in lives[task] if number > attempt for _, first, _ in lives[task][number]]
                outcome.overlap = max([outcome.overlap, *(last - first for first in later)])
                lease = leases[store_truth.Attempt(task, attempt)]
                if not lease.settlements:
                    past = last - max(lease.expiries)
                    outcome.past_expiry = past if outcome.past_expiry is None else max(past, outcome.past_expiry)


def _variable(pid: int, name: str) -> str:
    with suppress(OSError):
        for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if word.startswith(f"{name}=".encode()):
                return word.partition(b"=")[2].decode()
    return ""
