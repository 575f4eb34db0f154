"""`jobq config`, and variables that nothing reads."""

from tests.cli.conftest import Jobq


def test_it_shows_values_and_where_they_came_from(jobq: Jobq) -> None:
    result = jobq("config", env={"JOBQ_NUM_WORKERS": "4"})
    (line,) = [line for line in result.lines if line.startswith("JOBQ_NUM_WORKERS ")]
    assert line.split()[1:4] == ["4", "set", "here"]
    assert any(line.startswith("JOBQ_STOP_GRACE ") and " 20s " in line and "default" in line for line in result.lines)
    assert "JOBQ_GUARDIAN_FD" not in result.out


def test_only_what_changed_as_json(jobq: Jobq) -> None:
    result = jobq("config", "--changed", "--json", env={"JOBQ_BACKOFF": "1m"})
    assert {row["setting"]: row["value"] for row in result.objects}["backoff"] == "1m"
    assert all(row["origin"] != "default" for row in result.objects)


def test_a_bad_value_is_refused_with_its_name(jobq: Jobq) -> None:
    result = jobq("config", env={"JOBQ_STOP_GRACE": "5x"}, code=3)
    assert "JOBQ_STOP_GRACE: '5x' is not a duration" in result.err


def test_no_secret_is_shown(jobq: Jobq) -> None:
    result = jobq("config", env={"JOBQ_QUEUE": "postgresql://me:CANARY@host/db/q"})
    assert "CANARY" not in result.out + result.err


def test_a_variable_that_nothing_reads_is_warned_about_once(jobq: Jobq) -> None:
    """Also by a worker, which is two processes."""
    jobq("demo", "create")
    for command in (("demo", "size"), ("demo", "push", "-c", "true"), ("demo", "worker"), ("config",)):
        result = jobq(*command, env={"JOBQ_NUM_WORKER": "4"})

        warning = "warning: JOBQ_NUM_WORKER is no variable of jobq; did you mean 'JOBQ_NUM_WORKERS'?"
        assert result.err.count(warning) == 1, command


def test_the_queue_of_ai4s_jobqs_variables_is_shown_with_the_variable_that_names_it(jobq: Jobq) -> None:
    one = jobq("config", "--json", "--changed", env={"JOBQ_STORAGE_QUEUE": "acct/q"})
    (queue,) = (row for row in one.objects if row["setting"] == "queue")
    assert (queue["value"], queue["origin"], one.err) == ("acct/q", "JOBQ_STORAGE_QUEUE", "")
    both = jobq("config", "--changed", env={"JOBQ_STORAGE_QUEUE": "acct/q", "JOBQ_QUEUE": "demo"})
    assert "JOBQ_STORAGE_QUEUE is not used: JOBQ_QUEUE goes before it" in both.err


def test_a_word_of_a_setting_may_be_in_any_case(jobq: Jobq) -> None:
    """As ai4s-jobq reads JOBQ_LOCK_LOST_BEHAVIOR."""
    result = jobq("config", "--json", "--changed", env={"JOBQ_LOCK_LOST_BEHAVIOR": "SIGTERM"})
    assert {row["setting"]: row["value"] for row in result.objects}["lock_lost_behavior"] == "sigterm"
