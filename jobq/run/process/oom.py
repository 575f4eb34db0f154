"""Whether the kernel killed something for want of memory: a counter that is read before and after an attempt.

The counter of the worker's own control group where there is one, else that of the whole machine. It says that a
process was killed, not which one.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jobq.run.process.spawner import ExitStatus

_KEY: Final = "oom_kill"
_SHELL_SAYS_SIGKILL: Final = 128 + signal.SIGKILL  # a shell's exit code when its last command was killed


class OomCounter(NamedTuple):
    """Counts the kernel's out-of-memory kills.

    Attributes:
        file: lines of a key and a number; None = this system has no such counter.
        is_machine_wide: it counts those of other control groups too.
    """

    file: Path | None = None
    is_machine_wide: bool = False

    def read(self) -> int | None:
        """Return the kills so far; None = unknown."""
        if self.file is None:
            return None
        try:
            return _value_in(self.file)
        except (OSError, ValueError):
            return None


def oom_counter(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> OomCounter:
    """Return the counter that is nearest to this process.

    Args:
        proc: where the proc file system is.
        groups: where the control groups are.
    """
    for file in _candidates(proc, groups):
        if OomCounter(file).read() is not None:
            return OomCounter(file)
    everywhere = OomCounter(proc / "vmstat", is_machine_wide=True)
    return everywhere if everywhere.read() is not None else OomCounter()


class OomWatch:
    """Says of each attempt of one worker whether the kernel killed something for want of memory while it ran.

    Args:
        counter: of such kills.
    """

    def __init__(self, counter: OomCounter) -> None:
        self._counter = counter
        self._running: set[OomWitness] = set()

    def begin(self) -> "OomWitness":
        """Read the counter; call this before the process exists, or its own end may be counted already."""
        witness = OomWitness(self._counter, self._running.discard, has_neighbours=bool(self._running))
        for other in self._running:
            other.has_neighbours = True
        self._running.add(witness)
        return witness


class OomWitness:
    """What the counter says of one attempt, made by `OomWatch.begin`.

    Args:
        counter: read now, and again only when a process died by SIGKILL.
        forget: called at the end of the attempt.
        has_neighbours: other tasks of this worker ran meanwhile, so one of them may have been killed instead.
    """

    def __init__(self, counter: OomCounter, forget: Callable[["OomWitness"], None], *, has_neighbours: bool) -> None:
        self.has_neighbours = has_neighbours
        self.is_certain = False  # that what was explained was killed for want of memory
        self._counter = counter
        self._forget = forget
        self._before = counter.read()

    def end(self) -> None:
        """The attempt has ended, or never began; repeatable."""
        self._forget(self)

    def explain(self, status: ExitStatus, detail: str) -> str:
        """Return the detail of an attempt that ended so, and was not killed by us, with what the counter adds."""
        if status.signal != signal.SIGKILL and status.exit_code != _SHELL_SAYS_SIGKILL:
            return detail
        now = self._counter.read()
        if now is None or self._before is None or now <= self._before:
            return detail
        self.is_certain = not (self.has_neighbours or self._counter.is_machine_wide)
        if not self.is_certain:
            return f"{detail}; an out-of-memory kill by the kernel happened here meanwhile"
        if status.signal is None:
            return f"{detail}: a process of it was killed by the kernel: out of memory"
        return f"killed by the kernel: out of memory ({detail})"


def _candidates(proc: Path, groups: Path) -> Iterator[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            root, name = groups / "memory", "memory.oom_control"
        elif not controllers:
            root, name = groups, "memory.events"
        else:
            continue
        yield root / path.lstrip("/") / name
        yield root / name  # a container may see its own group as the root, under the host's name


def _value_in(file: Path) -> int | None:
    for line in file.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(" ")
        if key == _KEY:
            return int(value)
    return None
