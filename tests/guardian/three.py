"""A `jobq worker` whose three processes a test kills and stops, with a tree that is hard to find."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jobq.run.guardian.control_group import ControlGroup
from jobq.run.spawn.control_groups import made_by_jobq
from tests.guardian.stage import guardian_below, hostile, living, marker, until, worker_below

SCRUBBED = "env -i setsid " + " ".join(hostile("double_fork", "{mark}"))
THREE = ("watcher", "worker", "guardian")  # whoever is stopped in this order is continued by none of the others


class Worker:
    """A `jobq worker` with a task that no environment tells of, and a leader."""

    def __init__(self, folder: Path, first: str, **settings: str) -> None:
        folder.mkdir(exist_ok=True)
        self.mark = marker()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
        self.environment = {**kept, "JOBQ_HOME": str(folder), **settings}
        command = [sys.executable, "-m", "jobq", "demo"]
        scrubbed = SCRUBBED.format(mark=self.mark)
        tree = f"{first}; {scrubbed} & setsid {' '.join(hostile('idle', self.mark))} & sleep 1000"
        subprocess.run([*command, "push", "-c", tree], env=self.environment, check=True, capture_output=True)
        self.process = subprocess.Popen(
            [*command, "worker", "--visibility-timeout", "10s"],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: len(living(self.mark)) >= 3)
        self.watcher, self.guardian = self.process.pid, guardian_below(self.process.pid)
        self.worker = worker_below(self.process.pid)
        self.pidfds = {name: os.pidfd_open(getattr(self, name)) for name in THREE}

    def send(self, number: signal.Signals, *whom: str) -> None:
        for name in whom:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfds[name], number)

    def group(self) -> Path | None:
        return next((group for group in made_by_jobq() if f"-{self.watcher}-" in group.name), None)

    def end(self) -> None:
        self.send(signal.SIGKILL, *THREE)
        self.process.wait()
        for pidfd in self.pidfds.values():
            os.close(pidfd)
        if (group := self.group()) is not None:
            ControlGroup(str(group)).end(5)
        for pid in living(self.mark):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def a_worker(folder: Path, first: str = "true", **settings: str) -> Iterator[Worker]:
    """Start one whose task does something first; what is left of it at the end is killed."""
    worker = Worker(folder, first, **settings)
    try:
        yield worker
    finally:
        worker.end()
