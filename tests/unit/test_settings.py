"""One table of defaults (architecture 11); a variable is JOBQ_ and the name of its field."""

from datetime import timedelta

import pytest

from jobq.errors import ConfigurationError
from jobq.formats import durations
from jobq.settings import Settings, unknown_variables


def test_flag_beats_variable_beats_default() -> None:
    environment = {"JOBQ_NUM_WORKERS": "4", "JOBQ_BACKOFF": "1m", "JOBQ_QUEUE": "", "UNRELATED": "1"}
    settings = Settings.from_environment(environment, num_workers=8, idle_timeout=None)
    assert settings.num_workers == 8
    assert settings.backoff == timedelta(minutes=1)
    assert settings.queue is None, "an empty variable is as good as none"
    assert settings.max_crashes == 3


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"JOBQ_NUM_WORKERS": "0"}, "JOBQ_NUM_WORKERS: "),
        ({"JOBQ_NUM_WORKERS": "many"}, "JOBQ_NUM_WORKERS: "),
        ({"JOBQ_STOP_GRACE": "5x"}, "JOBQ_STOP_GRACE: '5x' is not a duration"),
        ({"JOBQ_TASK_ENV": "some"}, "JOBQ_TASK_ENV: "),
        ({"JOBQ_SQLITE_ADOPT": "perhaps"}, "JOBQ_SQLITE_ADOPT: "),
    ],
)
def test_a_bad_value_names_its_variable(environment: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environment(environment)
    assert str(caught.value).startswith(says)


def test_a_bad_flag_names_the_flag() -> None:
    with pytest.raises(ConfigurationError, match="--num-workers"):
        Settings.from_environment({}, num_workers=0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5s", 1.5),
        ("10m", 600),
        ("1h30m", 5400),
        ("7d", 604800),
        ("250ms", 0.25),
        ("1h 5s", 3605),
        ("0", 0),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert durations.parse(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["5x", "", "-5s", "nan", "inf", "1e400", "5 minutes", "s", "1s2", "99999999d", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|hundred"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.25s"), (45, "45s"), (600, "10m"), (61, "1m1s"), (5400, "1h30m"), (7200, "2h")]
)
def test_durations_are_shown(seconds: float, text: str) -> None:
    assert durations.show(seconds) == text


@pytest.mark.parametrize(
    ("environment", "spec"),
    [
        ({"JOBQ_STORAGE": "acct", "JOBQ_QUEUE": "q"}, "acct/q"),
        ({"JOBQ_STORAGE": "sb://ns/", "JOBQ_QUEUE": "q"}, "sb://ns/q"),
        ({"JOBQ_STORAGE": "acct", "JOBQ_QUEUE": "other/q"}, "other/q"),
        ({"JOBQ_STORAGE_QUEUE": "acct/q"}, "acct/q"),
        ({"JOBQ_STORAGE_QUEUE": "acct/q", "JOBQ_QUEUE": "demo"}, "demo"),
        ({"JOBQ_STORAGE": "acct"}, None),
        ({"JOBQ_STORAGE": "acct", "JOBQ_QUEUE": "q", "JOBQ_STORAGE_QUEUE": "other/q"}, "acct/q"),
        ({"JOBQ_QUEUE": "demo"}, "demo"),
    ],
)
def test_the_queue_as_ai4s_jobq_names_it(environment: dict[str, str], spec: str | None) -> None:
    """Its documented variables never mean a queue of this machine."""
    assert Settings.from_environment(environment).queue == spec
    assert unknown_variables(environment) == []
