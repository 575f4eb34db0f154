"""Every option of what runs or queues tasks is a variable too, or is here with the reason why it is none."""

from collections.abc import Iterator
from typing import Final

import click
import pytest

from jobq.cli.main import cli
from jobq.settings import Settings
from tests.cli.conftest import Jobq

COMMANDS: Final = ("worker", "run", "push", "fanout", "lease run", "logs", "healthcheck")
# Options whose setting has another name.
NAMED_OTHERWISE: Final = {
    ("lease run", "--ttl"): "lease_ttl",
    ("healthcheck", "--file"): "health_file",
}
_WHAT: Final = "it says what this one command is about; a variable would make all commands about that"
_OF_TASKS: Final = "of the tasks that are queued, each of which keeps it: a variable would change them unseen"
_ANSWER: Final = "it is about this command's own answer, or its way to wait"
NO_VARIABLE: Final = {
    "worker": {"--json": _ANSWER, "--max-tasks": _WHAT},
    "run": {
        "--json": _ANSWER,
        "--queue-file": _WHAT,
        "--resume": _WHAT,
        "--resume-failed": _WHAT,
        "--joblog": _WHAT,
        "--timeout": _OF_TASKS,
        **dict.fromkeys(("--grid", "--each", "--command", "--null", "--max-args"), _WHAT),
        "--halt": _WHAT,
        "--jobs": "it is another way to write --num-workers",
        **dict.fromkeys(("--cpus", "--gpus", "--mem"), _OF_TASKS),
        **dict.fromkeys(("--dry-run", "--keep-order", "--group"), _ANSWER),
    },
    "push": {
        **dict.fromkeys(("--command", "--call", "--kwargs", "--spec", "--id", "--resume", "--accept-changes"), _WHAT),
        **dict.fromkeys(("--grid", "--each", "--batch", "--open", "--then"), _WHAT),
        "--dedup-by-content": _OF_TASKS,
        **dict.fromkeys(("--env", "--cwd", "--timeout", "--delay", "--priority"), _OF_TASKS),
        **dict.fromkeys(("--cpus", "--gpus", "--mem", "--needs"), _OF_TASKS),
        **dict.fromkeys(("--dry-run", "--wait", "--wait-timeout", "--ids", "--json"), _ANSWER),
        "--no-create": "a sender without the right to create is refused in any case, and told so",
    },
    "fanout": {
        **dict.fromkeys(("--sql", "--key", "--lines", "--blobs", "--command", "--batch"), _WHAT),
        **dict.fromkeys(("--accept-changes", "--skip-refused"), _WHAT),
        **dict.fromkeys(("--timeout", "--priority", "--cpus", "--gpus", "--mem", "--needs"), _OF_TASKS),
        "--no-create": "as for push",
        **dict.fromkeys(("--dry-run", "--json"), _ANSWER),
    },
    "lease run": {
        **dict.fromkeys(("--wait", "--wait-at-most", "--conflict-exit-code"), _ANSWER),
    },
    "logs": {"--attempt": _WHAT, "--follow": _ANSWER, "--json": _ANSWER},
    "healthcheck": {"--json": _ANSWER, "--max-age": "of who asks; the worker writes each 5 s in any case"},
}


def _options(command: str) -> Iterator[tuple[str, str]]:
    """Yield each option's longest name, and the field of Settings that it would be."""
    found: click.Command | None = cli
    for word in command.split():
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    assert found is not None
    for option in found.params:
        if isinstance(option, click.Option) and option.name not in ("quiet", "verbose"):
            name = max(option.opts, key=len)
            yield name, NAMED_OTHERWISE.get((command, name), str(option.name))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_is_a_variable_or_says_why_it_is_none(command: str) -> None:
    missing = {name for name, field in _options(command) if field not in Settings.FIELDS}
    assert missing == NO_VARIABLE[command].keys()


def test_what_no_task_is_to_print(jobq: Jobq) -> None:
    jobq("demo", "push", "-c", "echo one", "-c", "echo two")
    quiet = {"JOBQ_QUIET_OUTPUT": "on"}
    shown = jobq("demo", "worker", env=quiet).out
    assert "one" not in shown
    assert "two" not in shown
    assert jobq("run", stdin="echo three\n", env=quiet).out == ""
