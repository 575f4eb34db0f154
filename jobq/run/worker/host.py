"""What a worker takes of its machine beside clock, backend and spawner; a simulation has one of its own."""

import random
from collections.abc import Callable, Mapping

from jobq.run.attempt.task_socket import TaskSocket
from jobq.run.process.oom import OomCounter, oom_counter
from jobq.run.process.output import OutputReader, StreamName
from jobq.run.process.task_folder import TaskFolder


class WorkerHost:
    """The machine as it is.

    Args:
        chance: spreads pauses and retries of all who wait for the same, and keeps no secret.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self.chance = chance or random.Random()  # noqa: S311

    def task_folder(self) -> TaskFolder:
        """Return the folder of one worker."""
        return TaskFolder()

    def task_line(self, folder: TaskFolder) -> TaskSocket:
        """Return the socket of one worker, which lies in its folder."""
        return TaskSocket(folder)

    def oom_counter(self) -> OomCounter:
        """Return the counter of what the kernel kills for want of memory."""
        return oom_counter()

    def output_reader(
        self,
        on_line: Callable[[StreamName, str], None],
        *,
        on_bytes: Mapping[str, Callable[[bytes], None]],
        sink: Callable[[StreamName, bytes], None],
    ) -> OutputReader:
        """Return what reads one attempt's output; raises OSError when no descriptors are left."""
        return OutputReader(on_line, on_bytes=on_bytes, sink=sink)
