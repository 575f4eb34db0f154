"""What tasks are made of: what an attempt will do, and the tree of processes that does it."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simulation.loop import Machine, Node


@dataclass(frozen=True, kw_only=True)
class TreePlan:
    """What one attempt will do, decided before it starts; all times in seconds.

    Attributes:
        start: from fork to exec.
        fails: the errno of a start that does not succeed; 0 = it does.
        run: how long it runs by itself.
        code: its exit code then.
        signal: it dies by this one instead; 0 = it does not.
        on_term: "exit", "ignore" or "slow".
        escapees: how many processes leave the group, each second one as a child of the one before.
        left: how many are still there, in the group, when the leader exits.
        death: from SIGKILL until the last of the tree is dead, if each is killed as soon as it can be.
        saves: moments at which it saves a checkpoint.
    """

    start: float = 0.002
    fails: int = 0
    run: float = 1.0
    code: int = 0
    signal: int = 0
    on_term: str = "exit"
    escapees: int = 0
    left: int = 0
    death: float = 0.002
    saves: tuple[float, ...] = ()

    @property
    def depth(self) -> int:
        """How many die one after the other: who has a living parent in the tree is seen only when that is dead."""
        return 1 + bool(self.escapees or self.left) + (self.escapees > 1)


@dataclass(eq=False, kw_only=True)
class TaskTree:
    """One attempt's processes.

    Attributes:
        number: that worker and guardian know it by.
        node: the worker that asked for it.
        deadline: that the guardian was sent last.
        leader: whether the first process lives; others: how many beside it.
        unreaped: how many the kernel still knows, dead ones too.
        killed: why; "" = it was not.
        started: the true time of its exec.
        status: the first one's, for wait(2), once it has ended.
        is_seen: whether its guardian has seen whether it started, to report it.
        is_ending: whether it was sent SIGTERM for a reason: no later answer calls back an end that has begun.
    """

    number: int
    task: str
    fencing: str
    plan: TreePlan
    node: Node
    machine: Machine
    deadline: float | None
    socket: str
    leader: bool = False
    others: int = 0
    unreaped: int = 0
    killed: str = ""
    started: float = 0.0
    status: int = 0
    is_over: bool = False
    ended_by_itself: bool = False
    has_term: bool = False
    is_seen: bool = False
    is_ending: bool = False
    timers: list[Any] = field(default_factory=list)

    @property
    def lives(self) -> bool:
        """Whether any of it does."""
        return self.leader or self.others > 0


class TaskPlans(Protocol):
    """Knows what tasks do."""

    def plan_of(self, task: str, fencing: str) -> TreePlan:
        """Return what an attempt does; the same for the same attempt."""
        ...

    def save(self, tree: TaskTree) -> None:
        """Have a task save a checkpoint now."""
        ...
