"""What holds a guardian's tasks together for the kernel, as it was asked for."""

from jobq.run.guardian.control_group import ControlGroup
from jobq.run.guardian.protocol import Message

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    from jobq.run.guardian.pid_namespaces import PidNamespaces

_END_SECONDS = 1.0  # for what was killed in vain until now to leave its group


class Contained:
    """A control group for all tasks, a PID namespace for each, or nothing.

    Args:
        group: the path of the group to make; empty = none.
        in_namespaces: whether each task is to have a namespace.

    Attributes:
        group: the control group.
        namespaces: makes the namespaces; None = the tasks are in ours.
        why: why there is not what was asked for.
    """

    def __init__(self, group: str = "", *, in_namespaces: bool = False) -> None:
        self.group = ControlGroup(group)
        self.namespaces: PidNamespaces | None = None
        self.why = ""
        self._in_namespaces = in_namespaces

    def begin(self) -> None:
        """Enter the group, or see whether there can be namespaces; before anything is started."""
        self.group.enter()
        self.why = self.group.why
        if self._in_namespaces:
            from jobq.run.guardian.pid_namespaces import PidNamespaces, why_not  # noqa: PLC0415 - seldom asked for

            self.why = why_not()
            self.namespaces = None if self.why else PidNamespaces()

    def as_message(self) -> Message:
        """Return what the worker is sent of it."""
        return {"group": self.group.path, "namespaces": self.namespaces is not None, "why": self.why}

    def end(self) -> None:
        """Leave the group and remove it, with all that lives in it."""
        if self.group.leave():  # else who watches us ends it, or the next worker to start
            self.group.end(_END_SECONDS)
