"""What users of ai4s-jobq push: its JSON lines, its short options, and lists that they push twice."""

import pytest

from tests.azure.emulator import ACCOUNT, Azurite
from tests.cli.conftest import Jobq


def test_its_json_lines_are_read(jobq: Jobq) -> None:
    lines = '{"cmd": "echo $A $B > done", "env": {"A": "1"}}\n{"cmd": "true"}\n'
    jobq("demo", "push", "-e", "B=2", "-", stdin=lines)
    assert jobq.commands() == ["echo $A $B > done", "true"]
    jobq("demo", "worker")
    assert (jobq.folder / "done").read_text() == "1 2\n"
    refused = jobq("demo", "push", "-", stdin='{"cmd": "true", "command": "false"}\n', code=2)
    assert "cmd: unknown field" in refused.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"cmd": ["ls", "-l"]}', "cmd: unknown field; it is command, which is a string; a list is argv"),
        ('{"args": ["ls"]}', "args: unknown field; it is argv, a list with the program first"),
        ('{"cmd": "true", "num_retries": 0}', 'num_retries: unknown field; it is one of the budgets: {"budgets": {'),
        ('{"cmd": "true", "timeout": "5m"}', "timeout: is a number of seconds in JSON, such as 300"),
        ('{"cmd": "true", "delay": 5}', "delay: unknown field; it is not_before, in seconds since 1970"),
    ],
)
def test_a_field_under_another_name(jobq: Jobq, line: str, said: str) -> None:
    assert f"standard input, line 1: {said}" in jobq("demo", "push", "-", stdin=f"{line}\n", code=2).err


def test_blanks_and_nulls_in_its_lines(jobq: Jobq) -> None:
    jobq("demo", "push", "-", stdin='{ "cmd": "true", "env": null, "cwd": null, "bg_dirsync_to": null}\n')
    assert jobq.commands() == ["true"]


def test_a_list_that_is_pushed_twice_runs_once(jobq: Jobq) -> None:
    """As with its deterministic ids: what differs in anything that runs is another task."""
    lines = 'echo one >> done\n{"command": "echo one >> done", "env": {"SEED": "1"}}\n{"cmd": "true", "id": "named"}\n'
    for _ in range(2):
        jobq("demo", "push", "--dedup-by-content", "-", stdin=lines)
    jobq("demo", "push", "--dedup-by-content", "-c", "echo one >> done")
    assert len(jobq.waiting()) == 3
    jobq("demo", "worker")
    jobq("demo", "push", "--dedup-by-content", "-c", "echo one >> done")
    assert jobq.waiting() == []
    assert (jobq.folder / "done").read_text() == "one\none\n"
    jobq("demo", "push", "--dedup-by-content", "--num-retries", "7", "-c", "echo one >> done")
    assert len(jobq.waiting()) == 1


def test_where_no_id_is_known_again_it_is_refused(jobq: Jobq, azurite: Azurite) -> None:
    jobq.environment["JOBQ_CONNECTION_STRING"] = azurite.connection_string
    for source in (("-c", "true"), ("-",)):
        refused = jobq(f"{ACCOUNT}/by-content", "push", "--dedup-by-content", *source, stdin="true\n", code=2)
        assert "--dedup-by-content: the service of by-content does not know an id again" in refused.err


@pytest.mark.parametrize("limit", ["-1", "3"])
def test_a_peek_at_all(jobq: Jobq, limit: str) -> None:
    jobq("demo", "push", "-", stdin="true\n" * 12)
    assert len(jobq("demo", "peek", "-n", limit).lines) == (12 if limit == "-1" else 3)
