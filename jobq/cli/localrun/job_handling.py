"""What a `jobq run` does with its jobs beyond running them: where their output goes, and when it ends early."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jobq.cli.display.passthrough_log import PassthroughLog
from jobq.cli.localrun.halting import Halt
from jobq.cli.localrun.job_output import JobOutput


@dataclass(frozen=True, kw_only=True)
class JobHandling:
    """See above.

    Attributes:
        output: lines = as they come; group = each job's together; order = likewise, in the order of the input.
        halt: when to end early; None = never.
    """

    output: Literal["lines", "group", "order"] = "lines"
    halt: Halt | None = None

    def output_of(self, screen: PassthroughLog, number_of: Callable[[str], int]) -> JobOutput | None:
        """Return what keeps output together; None = it is printed as it comes.

        Args:
            screen: where it is printed.
            number_of: returns the number of a task in the input, by its id.
        """
        if self.output == "lines":
            return None
        return JobOutput(screen, number_of, in_order=self.output == "order")
