"""Each command's `--help` shows examples, and each of them is run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from jobq.batch_plan import Plan
from jobq.batches import batches_of
from jobq.cli.common import ExampleCommand
from jobq.cli.main import cli
from jobq.task import Task
from tests.docs.runner import CHANGED, NOT_RUN, OTHER_CODES, PAGES, Line, Reader, blocks_of, lines_of

pytestmark = pytest.mark.check

SOME_ID: Final = "01a1fe07-5953-7359-9cd5-f423114d42f8"  # the dead letter of the examples
# Lines that wait until a queue is empty: they get an empty one.
ON_EMPTY: Final = {"while jobq demo size --fail-if-empty; do sleep 10; done"}
# Lines that wait until a batch has ended: they get one that has.
ON_ENDED: Final = {"jobq demo batch wait s7", "jobq demo batch wait s7 --timeout 1h"}


def examples(command: click.Command = cli, *path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each command with its examples."""
    if isinstance(command, ExampleCommand):
        yield " ".join(("jobq", *path)), tuple(command._examples)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from examples(found, *path, name)


EXAMPLES: Final = dict(examples())


def _next_home(reader: Reader, name: str, text: str) -> None:
    """Begin with other queues: a dead letter, a batch, and a task that waits."""
    reader.jobq.home = reader.folder / name
    reader.environment["JOBQ_HOME"] = str(reader.jobq.home)
    reader.jobq.kill_tasks(Task.new(command="exit 1", id=SOME_ID))
    reader.jobq.lease("nightly")
    reader.jobq.token("0123456789ab")
    if text not in ON_EMPTY:
        reader.jobq.inside(lambda backend: batches_of(backend).begin("s7", Plan()))
        if text in ON_ENDED:
            reader.jobq.inside(lambda backend: batches_of(backend).seal("s7"))
        reader.jobq.fill(Task.new(command="echo waited"))


@pytest.mark.slow("runs each command that is shown, each a process")
@pytest.mark.parametrize("command", [name for name, shown in EXAMPLES.items() if shown])
def test_what_help_shows_runs(tmp_path: Path, command: str) -> None:
    reader = Reader(tmp_path)
    for number, text in enumerate(EXAMPLES[command]):
        _next_home(reader, f"queues {number}", text)
        codes = OTHER_CODES.get(text, ([0], ""))[0]
        reader.runs(Line(text, []), codes[-1])


def test_every_command_has_an_example() -> None:
    assert [name for name, shown in EXAMPLES.items() if not shown] == []


def test_the_tables_speak_of_lines_that_are_there() -> None:
    shown = [line.text for page in PAGES for block in blocks_of(page) for line in lines_of(block)]
    shown += [text for texts in EXAMPLES.values() for text in texts]
    for head in NOT_RUN:
        assert any(text.startswith(head) for text in shown), head
    for part in CHANGED:
        assert any(part in text for text in shown), part
    assert set(OTHER_CODES) | ON_EMPTY | ON_ENDED <= set(shown)
