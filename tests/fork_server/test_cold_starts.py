"""Each command works from a cold start, as users start it, and as the forked calls do that tests make."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from jobq.cli.main import cli
from jobq.task import Task
from tests.cli.conftest import Jobq, Result
from tests.fork_server import forked

pytestmark = pytest.mark.check

# By the command: its arguments, and the exit code that is right for them.
CALLS: Final[dict[str, tuple[str, int]]] = {
    "push": ("demo push -c true", 0),
    "fanout": ("demo fanout lines --lines lines -- {line}", 0),
    "worker": ("demo worker", 0),
    "run": ("run lines", 0),
    "lease run": ("demo lease run name -- true", 0),
    "lease list": ("demo lease list", 0),
    "lease show": ("demo lease show name", 4),
    "lease release": ("demo lease release name", 4),
    "checkpoint": ("checkpoint 1", 3),
    "progress": ("progress 1", 3),
    "queues": ("queues", 0),
    "size": ("demo size --json", 0),
    "check": ("demo check --look --json", 0),
    "peek": ("demo peek", 0),
    "status": ("demo status id", 0),
    "top": ("demo top", 0),
    "ps": ("demo ps", 0),
    "logs": ("demo logs id", 0),
    "stats": ("demo stats", 0),
    "dead list": ("demo dead list", 0),
    "dead show": ("demo dead show id", 4),
    "dead retry": ("demo dead retry --all", 0),
    "dead purge": ("demo dead purge --all --yes", 0),
    "batch list": ("demo batch list", 0),
    "batch show": ("demo batch show s7", 4),
    "batch wait": ("demo batch wait s7", 4),
    "batch retry": ("demo batch retry s7", 4),
    "batch cancel": ("demo batch cancel s7 --yes", 4),
    "batch seal": ("demo batch seal s7", 4),
    "batch reopen": ("demo batch reopen s7", 4),
    "results": ("demo results --batch s7", 4),
    "create": ("other create", 0),
    "cancel": ("demo cancel id", 0),
    "clear": ("demo clear --yes", 0),
    "pause": ("demo pause", 0),
    "resume": ("demo resume", 0),
    "delete": ("demo delete --force", 0),
    "serve": ("serve demo --port 0 --certificate missing --key missing", 3),
    "ui": ("ui memory://a/b", 3),
    "serve token create": ("serve token create demo --scope read", 0),
    "serve token list": ("serve token list demo", 0),
    "serve token revoke": ("serve token revoke demo id", 4),
    "keys new": ("keys new key", 0),
    "keys show": ("keys show missing", 3),
    "keys trust": ("keys trust missing", 3),
    "keys revoke": ("keys revoke id", 3),
    "keys check": ("keys check", 3),
    "completion": ("completion bash", 0),
    "healthcheck": ("healthcheck", 3),
    "config": ("config", 0),
    "help": ("help lock-lost", 0),
}
_ANY: Final = re.compile(r"[0-9a-zA-Z_-]*\d[\w.:-]*")  # what is another each time: ids, times, ports, tokens


def leaves(group: click.Command = cli, *path: str) -> Iterator[str]:
    """Yield the commands that do something."""
    if not isinstance(group, click.Group) or group.invoke_without_command:
        yield " ".join(path)
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from leaves(command, *path, name)


def test_every_command_is_here() -> None:
    assert set(leaves()) == set(CALLS)


@pytest.mark.parametrize("command", CALLS)
def test_a_command_from_a_cold_start(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, code = CALLS[command]
    said = []
    for cold in (True, False):
        monkeypatch.setattr(forked, "is_cold", cold)
        folder = tmp_path / ("cold" if cold else "fork")
        folder.mkdir()
        jobq = Jobq(folder)
        jobq.fill(Task.new(command="true", id="id"))
        (folder / "lines").write_text("true\n")
        result = jobq(*text.split(), code=code)
        said.append(_comparable(result))
    assert said[0] == said[1]


def _comparable(result: Result) -> list[str]:
    assert "Traceback" not in result.err
    return _ANY.sub("N", result.out + result.err).replace("/cold/", "/fork/").splitlines()
