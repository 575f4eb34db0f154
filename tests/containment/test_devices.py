"""A GPU after blows to the worker that had granted it: the next task on it starts once the former tree is dead (P1)."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.processes import Blow, Processes
from tests.guardian.stage import until

pytestmark = pytest.mark.check

# Its first start ticks for ever, in a session of its own as well; any other ends well.
FIRST = """
mkdir started || exit 0
tick() { while :; do cut -d' ' -f1 /proc/uptime >> ticks; sleep 0.02; done; }
export -f tick
setsid bash -c tick & (setsid setsid bash -c tick &)
tick
"""
SECOND = "cut -d' ' -f1 /proc/uptime > second; touch done"


class OneCard:
    """Two tasks that need the only card of a worker: the first has it, the other one waits in the queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
        self.environment = {**kept, "JOBQ_HOME": str(folder / "home")}
        for script in (FIRST, SECOND):
            self.run("push", "--gpus", "1", "--cwd", str(folder), "-c", f"exec bash -c {shlex.quote(script)}")
        self.watcher = self.start("--restart", "3")
        until((folder / "ticks").exists)
        self.processes = Processes(self.watcher.pid)
        self.processes.aim()

    def run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "jobq", "demo", *arguments]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def start(self, *options: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "jobq", "demo", "worker", "-n", "1", "--gpus", "0", *options]
        return subprocess.Popen(
            [*command, "--visibility-timeout", "10s", "--idle-timeout", "2m"],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self, worker: "subprocess.Popen[bytes]") -> None:
        worker.terminate()
        worker.wait(60)


@pytest.fixture
def card(tmp_path: Path) -> Iterator[OneCard]:
    card = OneCard(tmp_path)
    yield card
    card.processes.close()
    card.end(card.watcher)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "case",
    [
        (Blow("kill", "worker"),),
        (Blow("kill", "guardian"),),
        (Blow("stop", "worker"), Blow("kill", "guardian")),
        (Blow("kill", "worker"), Blow("kill", "guardian")),
        (Blow("kill", "guardian"), Blow("kill", "worker")),
    ],
    ids=lambda case: " and ".join(map(str, case)),
)
def test_p1_the_next_on_a_card_starts_when_the_former_tree_is_dead(card: OneCard, case: tuple[Blow, ...]) -> None:
    """By the worker that was started again, or by another one that is started as soon as the watcher has ended."""
    card.processes.strike(case, 0.0)
    until(lambda: (card.folder / "done").exists() or card.watcher.poll() is not None, 60)
    other = card.start() if card.watcher.poll() is not None else None
    try:
        until((card.folder / "done").exists, 60)
    finally:
        if other is not None:
            card.end(other)
    ticks = [float(line) for line in (card.folder / "ticks").read_text().split("\n")[:-1] if line]
    assert max(ticks) <= float((card.folder / "second").read_text()), "both had the card"
