"""One process of a simulated kernel, and the pipe that says why a task does not execute."""

from tests.simulation.machine.trees import TaskTree


class SimulatedProcess:
    """One process, until it is reaped.

    Attributes:
        number: its own; another's as soon as it is reaped.
        parent: who reaps it.
        group: of processes; a leader and each that escapes has one of its own, and a session.
        tree: what it is of; None = it is the guardian or the worker.
        leader: of its tree, the subreaper of what is below it.
        status: for wait(2); None = it lives.
        is_dying: whether it was sent SIGKILL.
    """

    __slots__ = ("group", "is_dying", "leader", "number", "parent", "status", "tree")

    def __init__(self, number: int, parent: "SimulatedProcess | None", group: int, tree: TaskTree | None) -> None:
        self.number, self.parent, self.group, self.tree = number, parent, group, tree
        self.leader = self
        self.status: int | None = None
        self.is_dying = False


class Pipe:
    """Says to a guardian why a task does not execute; closed when it does, or is dead."""

    __slots__ = ("data", "is_closed", "tree")

    def __init__(self, tree: TaskTree) -> None:
        self.tree = tree
        self.data = b""
        self.is_closed = False
