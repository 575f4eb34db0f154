"""One task as it should be."""

from dataclasses import dataclass, field
from typing import Any

from jobq.fencing import FencingNumber
from jobq.task import Task
from tests.simulation.loop import Node


@dataclass(eq=False)
class KnownTask:
    """One task as it should be; times of leases are the broker's boottime in seconds, `True` ones are so named.

    Attributes:
        silent_ends: deliveries of this epoch that ended without a record.
        failed: attempts that ended by themselves with a failure, and on which node.
        not_started: attempts whose program could not be executed.
        succeeded, overtime: attempts that ended by themselves without one, and that ran to their time limit.
        settled: the settlement that was accepted, by fencing number.
        expires_of: when each lease ends or ended, by fencing number.
        extended_at: the true time before the last request that its worker knows to have extended it, likewise.
        refused: fencing numbers whose receipt has rotated away.
    """

    id: str
    task: Task
    is_pushed: bool = False
    is_acknowledged: bool = False
    state: str = "waiting"
    fencing: FencingNumber | None = None
    least_epoch: int = 0
    expires: float = 0.0
    granted_at: float = 0.0
    deliveries: int = 0
    silent_ends: int = 0
    starts: int = 0
    saved: str | None = None  # the last checkpoint that was acknowledged
    checkpoint_order: tuple[int, int] = (0, 0)  # of the last one that the broker accepted: delivery and number
    is_cancel_asked: bool = False
    is_stopping: bool = False  # it ran when it was canceled
    is_cancel_repeated: bool = False
    failed: dict[str, Node] = field(default_factory=dict)
    not_started: set[str] = field(default_factory=set)
    succeeded: set[str] = field(default_factory=set)
    overtime: set[str] = field(default_factory=set)
    settled: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    expires_of: dict[str, float] = field(default_factory=dict)
    extended_at: dict[str, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.state in ("done", "dead")
