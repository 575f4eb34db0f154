"""The only reader of JOBQ_* variables (DESIGN section 11: one table of defaults, nothing else decides)."""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from jobq import durations, sizes
from jobq.errors import ConfigurationError

_PREFIX: Final = "JOBQ_"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})
_LEAST_LIMIT_BYTES: Final = 1024 * 1024  # less is a unit left out: no program runs in it


def _duration(value: object) -> object:
    return durations.parse(value) if isinstance(value, str) else value


def _size(value: object) -> object:
    return sizes.parse(value) if isinstance(value, str) else value


def _limit(size: int) -> int:
    if size < _LEAST_LIMIT_BYTES:
        raise ValueError(f"{sizes.show(size)} is too little for any program; was a unit left out, as in {size}M?")
    return size


def _switch(value: object) -> object:
    if not isinstance(value, str):
        return value
    word = value.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{value!r} is neither on (1, true, yes) nor off (0, false, no)")
    return word in _TRUE


Duration = Annotated[timedelta, BeforeValidator(_duration)]
MemoryLimit = Annotated[int, BeforeValidator(_size), AfterValidator(_limit)]
Switch = Annotated[bool, BeforeValidator(_switch)]


class Settings(BaseModel):
    """Everything that can be set, with its default; a field NAME is the variable JOBQ_NAME.

    Attributes:
        queue: the spec when the command line has none.
        home: where the embedded queue and run-time files live; None = the user's data folder.
        visibility_timeout: the lease to ask for; None = the backend's default.
        allow_short_lease: permits leases under 10 s.
        num_workers: slots.
        num_retries, max_crashes, max_preemptions: the three budgets that `push` gives to a task.
        backoff, backoff_max: delay after the first failure, doubling up to the maximum, full jitter.
        lock_lost_behavior, lock_lost_grace: what a task gets when its lease cannot be kept.
        stop_grace: from SIGTERM to SIGKILL when the worker stops.
        idle_timeout: how long an empty queue is watched before the worker exits 0; None = as DESIGN section 11 says.
        max_consecutive_failures: failures of different tasks in a row that end the worker with exit code 1; 0 = never.
        time_limit: how long the worker takes new tasks; None = no limit.
        memory_limit: bytes that a command's whole process tree may use before it is killed; None = no limit. A library
            callback runs in the worker's own process and is not limited.
        task_env: whether a task inherits the worker's environment.
        guardian: whether a guardian owns the tasks; off says what is weaker.
        guardian_fd, guardian_restarted: set by the guardian for its worker; the latter for one whose predecessor died.
        restart: how often the guardian starts a worker again that died by a signal.
        scheduled_events: whether Azure is asked for notices of preemption; auto = where its metadata service answers.
        imds_url: that service; another one for tests.
        log_format: text, json, or auto (text on a terminal, json otherwise).
        sqlite_adopt: open an SQLite file that belongs to another machine, once.
        kill_margin, schedule_margin: K and J of the timing rule (RELIABILITY 1.3 rule 2); for tests.

    Raises:
        ConfigurationError: from `from_environment`; names the variable.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    queue: str | None = None
    home: Path | None = None
    visibility_timeout: Duration | None = None
    allow_short_lease: Switch = False
    num_workers: Annotated[int, Field(ge=1, le=4096)] = 1
    num_retries: Annotated[int, Field(ge=0)] = 3
    max_crashes: Annotated[int, Field(ge=0)] = 3
    max_preemptions: Annotated[int, Field(ge=0)] = 100
    backoff: Duration = timedelta(seconds=5)
    backoff_max: Duration = timedelta(minutes=10)
    lock_lost_behavior: Literal["sigkill", "sigterm"] = "sigkill"
    lock_lost_grace: Duration = timedelta(seconds=10)
    stop_grace: Duration = timedelta(seconds=20)
    idle_timeout: Duration | None = None
    max_consecutive_failures: Annotated[int, Field(ge=0)] = 10
    time_limit: Duration | None = None
    memory_limit: MemoryLimit | None = None
    task_env: Literal["inherit", "clean"] = "inherit"
    guardian: Literal["on", "off"] = "on"
    guardian_fd: Annotated[int, Field(ge=0)] | None = None
    guardian_restarted: Switch = False
    restart: Annotated[int, Field(ge=0)] = 0
    scheduled_events: Literal["auto", "on", "off"] = "auto"
    imds_url: str = "http://169.254.169.254"
    log_format: Literal["auto", "text", "json"] = "auto"
    sqlite_adopt: Switch = False
    kill_margin: Duration = timedelta(seconds=1)
    schedule_margin: Duration = timedelta(seconds=0.5)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Read the environment (os.environ by default); `overrides` that are not None win, as flags do."""
        source = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for name in cls.model_fields:
            text = source.get(_PREFIX + name.upper())
            if text:  # an empty variable is as good as none: compose files leave them
                values[name] = text
        values.update({name: value for name, value in overrides.items() if value is not None})
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0])
            message = first["msg"].removeprefix("Value error, ")
            shown = f"--{name.replace('_', '-')}" if overrides.get(name) is not None else _PREFIX + name.upper()
            raise ConfigurationError(f"{shown}: {message}") from None


def user_home(settings: Settings) -> Path:
    """Return the folder of the embedded queue: JOBQ_HOME, else the platform's folder for user data."""
    if settings.home is not None:
        return settings.home.expanduser()
    import platformdirs  # noqa: PLC0415 - needed by the embedded queue only

    return Path(platformdirs.user_data_dir("jobq", appauthor=False))


def is_ours(variable: str) -> bool:
    """Tell whether a variable is jobq's own, which no task inherits (RELIABILITY 3, A6)."""
    return variable.startswith(_PREFIX)
