"""A control group of one worker's tasks: one write kills all that is in it, whatever it did to hide (cgroups(7), v2).

The guardian moves itself into it before it starts anything. So there is no moment in which a process of a task is
outside, and no task costs more than before. No controller is enabled in it.
"""

import contextlib
import os
import time

_PAUSE_SECONDS = 0.005


class ControlGroup:
    """A group that jobq makes, named by a random id: no other ever has its path.

    Args:
        path: of its folder; empty = there is none, and nothing is ever done.

    Attributes:
        path: as given, or empty once it is known that there is none.
        why: why there is none; empty while there may be one, or where none was asked for.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.why = ""
        self._above = path.rpartition("/")[0]

    def enter(self) -> None:
        """Make it and move this process into it; where that cannot be, there is none."""
        if not self.path:
            return
        try:
            os.mkdir(self.path)  # noqa: PTH102 - pathlib costs 1 MB
            if os.access(f"{self.path}/cgroup.kill", os.W_OK):
                _write(f"{self.path}/cgroup.procs", b"0")
                return
            self.why = "this kernel cannot kill a control group as a whole, Linux 5.14 can"
        except OSError as error:  # not ours, read-only, threaded, or as many groups as there may be
            self.why = f"no control group can be made and entered in {self._above}: {error.strerror}"
        self._remove(self.path)
        self.path = ""

    def leave(self) -> bool:
        """Move this process back to where it was; return whether it is in the group no more."""
        with contextlib.suppress(OSError):
            if self.path:
                _write(f"{self._above}/cgroup.procs", b"0")
            return True
        return False

    def kill(self) -> None:
        """Kill all that is in it and below, also what forks meanwhile."""
        with contextlib.suppress(OSError):  # it is gone
            if self.path:
                _write(f"{self.path}/cgroup.kill", b"1")

    def end(self, seconds: float) -> bool:
        """Kill all that is in it and remove it, with those that tasks have made below; return whether that is done.

        Args:
            seconds: how long to try: what is killed still has to die.
        """
        give_up = time.monotonic() + seconds
        self.kill()
        while self.path and not self._remove(self.path):
            if time.monotonic() >= give_up:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def _remove(self, path: str) -> bool:
        try:
            with os.scandir(path) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            for group in below:
                self._remove(group)
            os.rmdir(path)  # noqa: PTH106 - pathlib costs 1 MB
        except FileNotFoundError:
            return True
        except OSError:  # EBUSY: something in it lives
            return False
        return True


def _write(path: str, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, data)
    finally:
        os.close(file)
