"""What each attempt of a task does, and what it saves; the same for the same attempt in each replay."""

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from jobq.errors import JobqError
from tests.simulation.loop import Loop
from tests.simulation.machine.trees import TaskTree, TreePlan
from tests.simulation.scenario import Scenario

if TYPE_CHECKING:
    from jobq.run.attempt.checkpoints import AttemptCheckpoints


def chance_of(seed: int | str) -> Random:
    """Return a generator of its own for one part of a run."""
    return Random(seed)


class Attempts:
    """Knows all of one run; see `trees.Tasks`.

    Args:
        seed: the run's.
        scenario: says what attempts may do.
        loop: the run's.

    Attributes:
        lines: what saves for each attempt, by what JOBQ_TASK_SOCKET says to its task.
        is_faulty: whether a start may fail.
    """

    def __init__(self, seed: int, scenario: Scenario, loop: Loop) -> None:
        self.lines: dict[str, AttemptCheckpoints] = {}
        self.is_faulty = True
        self._seed, self._scenario, self._loop = seed, scenario, loop
        self._plans: dict[tuple[str, str], TreePlan] = {}

    def plan_of(self, task: str, fencing: str) -> TreePlan:
        """Return what an attempt does."""
        if (task, fencing) not in self._plans:
            chance = chance_of(f"{self._seed} {task} {fencing}")
            self._plans[task, fencing] = self._scenario.plan(chance, is_faulty=self.is_faulty)
        return self._plans[task, fencing]

    def save(self, tree: TaskTree) -> None:
        """Have a task save a checkpoint now."""
        checkpoints = self.lines.get(tree.socket)
        if checkpoints is None or tree.node.dead or not tree.leader:
            return

        async def save() -> None:
            with suppress(JobqError):
                await checkpoints.checkpoint(str(int(checkpoints.value or 0) + 1))

        self._loop.true_later(0.0, tree.node, lambda: self._loop.create_task(save()))
