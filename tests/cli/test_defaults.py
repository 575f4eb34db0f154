"""The options of the table of defaults (architecture 11) exist, with its defaults; typos are met with suggestions."""

import re
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pytest

from jobq.errors import ConfigurationError
from jobq.formats.durations import show
from jobq.lease.timing import timing_for
from jobq.settings import Settings
from jobq.settlement import TAIL_CHARACTERS
from jobq.spec import resolve
from tests.cli.conftest import Jobq


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        setting: the field of Settings; "" for what is set elsewhere.
        default: there.
        option: the command and its option; None where there is a variable alone.
        shown: the default as --help tells it.
        comes_with: what is not part of jobq yet; until it is, the row may be missing.
    """

    setting: str
    default: Any
    option: tuple[str, str] | None = None
    shown: str = ""
    comes_with: str = ""


DEFAULTS: Final = (
    Row("visibility_timeout", None, ("worker", "--visibility-timeout"), "the queue's"),
    Row("allow_short_lease", False),
    Row("num_workers", 1, ("worker", "--num-workers"), "1"),
    Row("num_workers", 1, ("worker", "-n"), "1"),
    Row("num_workers", 1, ("run", "-n"), "1"),
    Row("num_retries", 3, ("push", "--num-retries"), "3"),
    Row("max_crashes", 3, ("push", "--max-crashes"), "3"),
    Row("max_preemptions", 100, ("push", "--max-preemptions"), "100"),
    Row("backoff", timedelta(seconds=5), ("worker", "--backoff"), "5s"),
    Row("backoff_max", timedelta(minutes=10), ("worker", "--backoff-max"), "10m"),
    Row("lock_lost_behavior", "sigkill"),
    Row("lock_lost_grace", timedelta(seconds=10)),
    Row("stop_grace", timedelta(seconds=20), ("worker", "--stop-grace"), "20s"),
    Row("idle_timeout", None, ("worker", "--idle-timeout"), "ends when empty"),
    Row("poll_max", timedelta(seconds=10), comes_with="the Azure backends"),
    Row("max_consecutive_failures", 10, ("worker", "--max-consecutive-failures"), "10"),
    Row("time_limit", None, ("worker", "--time-limit"), "no limit"),
    Row("keep", timedelta(days=30), ("worker", "--keep"), "30d"),
    # Beyond the table: what came later and is told in the same way.
    Row("metrics_port", None, ("worker", "--metrics-port"), "none"),
    Row("memory_limit", None, ("worker", "--memory-limit"), "no limit"),
    Row("log_format", "auto", ("worker", "--log-format"), "auto"),
    Row("view", "auto", ("worker", "--view"), "auto"),
    Row("restart", 0, ("worker", "--restart"), "0"),
    Row("guardian", "on", ("worker", "--guardian"), "on"),
    Row("log_dir", None, ("worker", "--log-dir"), "it is not written"),
    Row("checkpoint_store", None, ("worker", "--checkpoint-store"), "tasks have no such folder"),
)


@pytest.mark.parametrize("row", DEFAULTS, ids=lambda row: f"{row.setting}{row.option[1] if row.option else ''}")
def test_settings_have_the_defaults_of_the_table(row: Row) -> None:
    field = Settings.FIELDS.get(row.setting)
    if field is None and row.comes_with:
        pytest.skip(f"comes with {row.comes_with}")
    assert field is not None
    assert field.default == row.default
    assert row.option is None or row.shown


def test_help_tells_the_defaults_of_the_table(jobq: Jobq) -> None:
    names = sorted({row.option[0] for row in DEFAULTS if row.option})
    texts = {name: " ".join(jobq(name, "--help", env={"COLUMNS": "200"}).out.split()) for name in names}
    for row in DEFAULTS:
        if row.option is not None:
            command, option = row.option
            assert re.search(rf"{option}\b.*? Default: {re.escape(row.shown)}\.", texts[command]), row


@pytest.mark.parametrize("spec", ["demo", "memory://name/demo"])
def test_leases_are_those_of_the_table(spec: str) -> None:
    assert resolve(spec, Settings()).capabilities.default_lease == timedelta(seconds=60)


def test_the_shortest_lease_is_that_of_the_table() -> None:
    timing_for(timedelta(seconds=10), Settings()).check(allow_short=False)
    with pytest.raises(ConfigurationError, match="JOBQ_ALLOW_SHORT_LEASE"):
        timing_for(timedelta(seconds=9.9), Settings()).check(allow_short=False)


def test_the_tail_in_a_dead_letter_is_that_of_the_table() -> None:
    assert TAIL_CHARACTERS == 4096
    assert show(Settings().stop_grace) == "20s"


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (("wroker",), "'worker'"),
        (("demo", "psuh"), "'push'"),
        (("demo", "dead", "rerty"), "'retry'"),
        (("demo", "redrive"), "'dead retry'"),
        (("demo", "dead", "redrive"), "'retry'"),
        (("demo", "enqueue"), "'push'"),
        (("demo", "count"), "'size'"),
        (("demo", "worker", "--num-wrokers", "2"), "'--num-workers'"),
        (("demo", "push", "--timout", "2"), "'--timeout'"),
        (("demo", "size", "--jsno"), "'--json'"),
        (("demo", "dead", "list", "--limt", "2"), "'--limit'"),
        (("--verison",), "'--version'"),
        (("demo", "worker", "--log-format", "jsn"), "'json'"),
    ],
)
def test_typos_are_met_with_what_was_meant(jobq: Jobq, line: tuple[str, ...], meant: str) -> None:
    said = jobq(*line, code=2).err
    assert re.search(rf"(id you mean|is not one of).*{meant}", said), said


@pytest.mark.parametrize(("variable", "meant"), [("JOBQ_QEUEU", "JOBQ_QUEUE"), ("JOBQ_VEIW", "JOBQ_VIEW")])
def test_misspelled_variables_too(jobq: Jobq, variable: str, meant: str) -> None:
    assert f"did you mean '{meant}'?" in jobq("config", env={variable: "x"}).err
