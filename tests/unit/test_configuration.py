"""docs/configuration.md and `explain` say what the code does."""

from pathlib import Path

import click
import pytest

from jobq.cli import configuration
from jobq.cli.commands.push import push
from jobq.cli.commands.worker import worker
from jobq.settings import Settings, unknown_variables

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_as_make_docs_writes_it() -> None:
    assert PAGE.read_text() == configuration.markdown(), "run `make docs`"


def test_the_options_are_those_of_the_commands() -> None:
    options = {
        str(parameter.name): parameter.opts
        for command in (push, worker)
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name in Settings.FIELDS
    }
    assert set(options) == configuration._OPTIONS
    assert all(configuration.option_of(name) in names for name, names in options.items())


def test_every_setting_says_what_it_is_for() -> None:
    for row in configuration.explain({}):
        assert row.about.text.endswith("."), row.name
        assert row.about.accepts, row.name
        assert row.origin == "default"


def test_a_value_and_where_it_came_from() -> None:
    found = {row.name: row for row in configuration.explain({"JOBQ_BACKOFF": "90", "JOBQ_MEMORY_LIMIT": "2g"})}
    assert (found["backoff"].value, found["backoff"].origin, found["backoff"].default) == (
        "1m30s",
        "JOBQ_BACKOFF",
        "5s",
    )
    assert found["memory_limit"].value == "2 GiB"
    assert found["num_workers"].origin == "default"


@pytest.mark.parametrize("spec", ["postgresql://me:CANARY@host/db/q", "acct/q?sig=CANARY", "AccountKey=CANARY;x/q"])
def test_what_may_be_a_secret_is_not_shown(spec: str) -> None:
    found = {row.name: row.value for row in configuration.explain({"JOBQ_QUEUE": spec})}
    assert found["queue"] == configuration.HIDDEN


def test_variables_that_nothing_reads() -> None:
    environment = {"JOBQ_NUM_WORKER": "4", "JOBQ_NUM_WORKERS": "4", "JOBQ_TASK_ID": "x", "PATH": "", "XJOBQ_A": ""}
    assert unknown_variables(environment) == ["JOBQ_NUM_WORKER"]
