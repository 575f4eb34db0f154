"""The jobs of one command and its lists of arguments, as what a `jobq run` reads; see `RunInput`."""

import json
import shlex
from collections.abc import AsyncIterator, Sequence

from jobq.cli.localrun.input_feed import id_for
from jobq.errors import MalformedTask
from jobq.submit.argument_lists import Arguments
from jobq.submit.argument_template import ArgumentTemplate
from jobq.submit.input_lines import TaskOptions
from jobq.submit.line_chunks import NumberedTask
from jobq.submit.pusher import chunks
from jobq.task import Task


class ArgumentInput:
    """One job for each of the arguments.

    Args:
        arguments: of all jobs.
        command: what they are filled into.
        again: the words that give it.
    """

    what = "jobs"

    def __init__(self, arguments: Arguments, command: ArgumentTemplate, again: Sequence[str]) -> None:
        self.path = arguments.path
        self.again = shlex.join(again) + (" < FILE" if arguments.path == "-" else "")
        self._arguments = arguments
        self._command = command
        self._jobs = 0

    @property
    def size(self) -> int:
        """How many jobs there were so far."""
        return self._jobs

    async def is_empty(self) -> bool:
        """Return False: a list that is named is meant, whatever it holds."""
        return False

    async def chunks(self, template: TaskOptions) -> AsyncIterator[list[NumberedTask]]:
        """Yield all jobs; raises MalformedTask, which says of which."""
        async for page in self._arguments.pages():
            tasks: list[Task] = []
            fault: MalformedTask | None = None
            for number, arguments in enumerate(page, self._jobs + 1):
                try:
                    tasks.append(self.task(number, arguments, template))
                except MalformedTask as error:
                    fault = MalformedTask(f"{self.place(number)}: {error}")
                    break
            for some in chunks(tasks):
                yield list(enumerate(some, self._jobs + 1))
                self._jobs += len(some)
            if fault is not None:
                raise fault

    def task(self, number: int, arguments: Sequence[str], template: TaskOptions) -> Task:
        """Return the task of one job; raises MalformedTask."""
        filled = self._command.filled(arguments, number)
        return template.task(**filled, id=id_for(number, json.dumps([self._command.text, *arguments]).encode()))

    async def tasks(self, template: TaskOptions) -> AsyncIterator[Task]:
        """Yield the task of each job, for a look at them; raises MalformedTask."""
        async for some in self.chunks(template):
            for _, task in some:
                yield task

    def place(self, number: int) -> str:
        """Return which job it is."""
        return f"job {number}"

    part = place
