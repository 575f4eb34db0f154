"""All settings with their defaults, read from JOBQ_* variables (architecture 11 names what else is read, and where)."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from jobq.errors import ConfigurationError
from jobq.files.location import checked_place
from jobq.formats import durations, sizes

_PREFIX: Final = "JOBQ_"
# What a task is given: a jobq command inside of a task finds them in its environment.
TASK_VARIABLES: Final = frozenset(
    {
        "JOBQ_TASK_ID",
        "JOBQ_ATTEMPT",
        "JOBQ_LEASE_NAME",
        "JOBQ_LEASE_TOKEN",
        "JOBQ_QUEUE_NAME",
        "JOBQ_CHECKPOINT",
        "JOBQ_CHECKPOINT_DIR",
        "JOBQ_RESULT_FILE",
        "JOBQ_CALLBACK_SOCKET",
        "JOBQ_TASK_SOCKET",
        "JOBQ_WORKER_ID",
    }
)
_STORAGE: Final = "JOBQ_STORAGE"  # this and the next as ai4s-jobq has them
_STORAGE_QUEUE: Final = "JOBQ_STORAGE_QUEUE"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})
_LEAST_LIMIT_BYTES: Final = 1024 * 1024  # less is a unit left out: no program runs in it


def _duration(value: object) -> object:
    return durations.parse(value) if isinstance(value, str) else value


def _size(value: object) -> object:
    return sizes.parse(value) if isinstance(value, str) else value


def _place(value: object) -> object:
    return checked_place(value) if isinstance(value, str) else value


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


def _journal(value: str) -> str:
    place = value.strip()
    if place in ("auto", "off", "tables") or (place.startswith("tables://") and place != "tables://"):
        return place.rstrip("/")
    raise ValueError(f"{value!r} is no place for a journal: auto, off, tables, or tables://ACCOUNT")


def _words(value: object) -> object:
    return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
MemoryLimit = Annotated[int, BeforeValidator(_size), AfterValidator(_limit)]
Size = Annotated[int, BeforeValidator(_size), Field(ge=1)]
PlaceText = Annotated[str, AfterValidator(_place)]
Switch = Annotated[bool, BeforeValidator(_switch)]
Journal = Annotated[str, AfterValidator(_journal)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


@dataclass(frozen=True)
class About:
    """What a setting is for, beside its type: shown by `jobq config` and in docs/configuration.md.

    Attributes:
        text: what it decides.
        unset: what happens when it has no value.
        accepts: what may be written.
        is_secret: its value is never shown.
        audience: "users", or "tests" and "jobq" for what is set by these alone.
    """

    text: str
    unset: str = ""
    accepts: str = ""
    is_secret: bool = False
    audience: Literal["users", "tests", "jobq"] = "users"


class Settings(BaseModel):
    """Everything that can be set, with its default; a field NAME is the variable JOBQ_NAME.

    Raises:
        ConfigurationError: from `from_environment`; names the variable.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    queue: Annotated[str | None, About("The queue, when the command line names none.", accepts="a queue spec")] = None
    home: Annotated[
        Path | None, About("Where embedded queues live.", unset="the user's data folder", accepts="a folder")
    ] = None
    visibility_timeout: Annotated[
        Duration | None, About("The lease that a worker asks for and renews.", unset="the queue's own")
    ] = None
    lease_ttl: Annotated[
        Duration | None,
        About(
            "How long a named lease outlasts its holder's last renewal.",
            unset="1m for `lease run`, 20s for `push --resume` and `fanout`",
        ),
    ] = None
    leases: Annotated[
        str | None,
        About(
            "The queue whose named leases carry the cursors of `push --resume` and `fanout`.",
            unset="the one that is pushed to",
            accepts="a queue spec",
        ),
    ] = None
    allow_short_lease: Annotated[Switch, About("Permits leases under 10 s.", audience="tests")] = False
    num_workers: Annotated[int, Field(ge=1, le=4096), About("Slots: how many tasks a worker runs at once.")] = 1
    num_retries: Annotated[int, Field(ge=0), About("Retries after a failure that `push` gives to a task.")] = 3
    on_exit: Annotated[
        Words,
        About(
            "Exit rules that `push` gives to a task: CODE, SIGNAL, oom or timeout, =, and retry, fail or delay:10m.",
            unset="the budgets alone decide",
            accepts="rules, separated by commas",
        ),
    ] = ()
    onward_queues: Annotated[
        Words,
        About(
            "The queues to which a worker sends tasks on whose exit rule says `queue:NAME`; where the name is another,"
            " the task becomes a dead letter.",
            unset="none",
            accepts="names of queues, separated by commas",
        ),
    ] = ()
    max_crashes: Annotated[int, Field(ge=0), About("Crashes and lost leases that `push` forgives a task.")] = 3
    max_preemptions: Annotated[int, Field(ge=0), About("How often a task may be given back, as `push` sets it.")] = 100
    backoff: Annotated[Duration, About("The longest delay after a first failure; doubles, with full jitter.")] = (
        timedelta(seconds=5)
    )
    backoff_max: Annotated[Duration, About("Where doubling stops.")] = timedelta(minutes=10)
    lock_lost_behavior: Annotated[
        Literal["sigkill", "sigterm"], About("What a task gets when its lease cannot be kept; SIGTERM comes before.")
    ] = "sigkill"
    lock_lost_grace: Annotated[Duration, About("From SIGTERM to SIGKILL when a lease cannot be kept.")] = timedelta(
        seconds=10
    )
    stop_grace: Annotated[Duration, About("From SIGTERM to SIGKILL for tasks when the worker stops.")] = timedelta(
        seconds=20
    )
    idle_timeout: Annotated[
        Duration | None, About("How long an empty queue is watched before the worker ends.", unset="it ends when empty")
    ] = None
    max_consecutive_failures: Annotated[
        int,
        Field(ge=0),
        About(
            "First failures of different tasks in a row that end the worker with code 1; one more for each task that"
            " succeeded here in the last 10 min, at most five times as many. 0 = never."
        ),
    ] = 10
    time_limit: Annotated[Duration | None, About("How long a worker takes new tasks.", unset="no limit")] = None
    memory_limit: Annotated[
        MemoryLimit | None,
        About(
            "What a task's whole process tree may use before it is killed. Callbacks inside the worker have none.",
            unset="no limit",
        ),
    ] = None
    task_env: Annotated[Literal["inherit", "clean"], About("Whether tasks inherit the worker's environment.")] = (
        "inherit"
    )
    task_user: Annotated[
        str | None,
        About(
            "As whom tasks run, with no new privileges, a umask of 077 and no core files; of a range each slot has one"
            " user, and nothing that runs as it outlives an attempt. The worker has to be root.",
            unset="the worker's own user",
            accepts="a name or number, or a range such as 2000-2063",
        ),
    ] = None
    task_max_processes: Annotated[
        Annotated[int, Field(ge=1)] | None,
        About("How many processes a user of JOBQ_TASK_USER may have (RLIMIT_NPROC).", unset="as many as the worker's"),
    ] = None
    allow_commands: Annotated[
        Words,
        About(
            "The only programs that a worker runs, where it is set: the first word of commands without a shell; or,"
            " with a ^ in front, a regular expression for the whole of any command, a shell's text too.",
            unset="it runs all that is queued",
            accepts="names or regular expressions, separated by commas (a comma within one is \\x2c)",
        ),
    ] = ()
    allow_calls: Annotated[
        Words,
        About(
            "The only functions that a worker calls, where it is set.",
            unset="it calls all that is queued",
            accepts="package.module:function, separated by commas",
        ),
    ] = ()
    allow_variables: Annotated[
        Words,
        About(
            "The variables that a task may bring to a worker with a list of commands or functions.",
            unset="none",
            accepts="names or patterns such as FANOUT_*, separated by commas",
        ),
    ] = ()
    require_signed: Annotated[
        Literal["off", "warn", "on"],
        About(
            "Whether a worker runs only tasks that a key of JOBQ_TRUSTED_KEYS has signed for its queue; warn = it runs"
            " others too, and says what `on` would do."
        ),
    ] = "off"
    trusted_keys: Annotated[
        Path | None,
        About(
            "The file with the keys that a worker trusts, as `jobq keys trust` writes it; read again when it changes.",
            unset="none",
            accepts="a path",
        ),
    ] = None
    sign_key_file: Annotated[
        Path | None,
        About(
            "The key with which `push` signs, as `jobq keys new` writes it: readable by its owner alone.",
            unset="tasks are not signed",
            accepts="a path",
        ),
    ] = None
    sign_command: Annotated[
        str | None,
        About(
            "A program that signs instead: given lines of base64, what is to be signed, it writes a line with the"
            " signature for each.",
            unset="none",
            accepts="a program with arguments",
        ),
    ] = None
    sign_key_id: Annotated[
        str | None, About("The id of the key that this program has.", unset="none", accepts="an id")
    ] = None
    sign_for: Annotated[
        Duration, About("For how long what `push` signs may be run, from when it is pushed or due.")
    ] = timedelta(days=30)
    audience: Annotated[
        Words,
        About(
            "What the place of the queues is called in signed tasks, where pushing and working name it otherwise; the"
            " first one is signed for.",
            unset="as the queue spec has it",
            accepts="names, separated by commas",
        ),
    ] = ()
    guardian: Annotated[
        Literal["on", "off"], About("Whether a guardian owns the tasks; off is weaker, and the worker says how.")
    ] = "on"
    containment: Annotated[
        Literal["auto", "cgroup", "pidns", "off"],
        About(
            "What holds a worker's tasks together for the kernel: auto = a control group where this user may make one"
            " and no task would notice; cgroup = one in any case, or the worker refuses to start; pidns = a PID"
            " namespace for each attempt, likewise. `jobq config` says what it comes to here."
        ),
    ] = "auto"
    preload: Annotated[
        Words,
        About(
            "Python modules that a worker imports once, in a process of which tasks that are functions are forked.",
            unset="none",
            accepts="module names, separated by commas",
        ),
    ] = ()
    guardian_fd: Annotated[
        Annotated[int, Field(ge=0)] | None, About("The worker's socket to its guardian.", audience="jobq")
    ] = None
    guardian_restarted: Annotated[Switch, About("The worker's predecessor died.", audience="jobq")] = False
    restart: Annotated[int, Field(ge=0), About("How often a worker that a signal killed is started again.")] = 0
    scheduled_events: Annotated[
        Literal["auto", "on", "off"],
        About("Whether Azure is asked for notices of preemption; auto = where its metadata service answers."),
    ] = "auto"
    imds_url: Annotated[str, About("That service.", accepts="a URL", audience="tests")] = "http://169.254.169.254"
    log_format: Annotated[
        Literal["auto", "text", "json"], About("Of the worker's log; auto = text on a terminal, json elsewhere.")
    ] = "auto"
    view: Annotated[
        Literal["auto", "live", "lines"],
        About("What `worker` and `run` show on a terminal; auto = a live table of the slots, unless output is piped."),
    ] = "auto"
    quiet_output: Annotated[
        Switch, About("Whether `worker`, `run` and `pull` leave out what tasks print, which the journal has.")
    ] = False
    health_file: Annotated[
        Path | None,
        About(
            "A file that the worker writes every 5 s while it lives; `jobq healthcheck` reads it.",
            unset="none",
            accepts="a path",
        ),
    ] = None
    termination_grace: Annotated[
        Duration | None,
        About(
            "How long the platform leaves a worker from SIGTERM to SIGKILL; the worker warns where its own stop takes"
            " longer.",
            unset="not checked",
        ),
    ] = None
    metrics_port: Annotated[
        Annotated[int, Field(ge=1, le=65535)] | None,
        About("Where a worker serves /metrics for Prometheus, and /healthz.", unset="nowhere"),
    ] = None
    metrics_host: Annotated[
        str, About("The address of these; 0.0.0.0 lets other machines in.", accepts="an address")
    ] = "127.0.0.1"
    pod_deletion_cost: Annotated[
        Switch,
        About("Whether a worker in Kubernetes marks its pod with what it runs, so that idle pods are removed first."),
    ] = False
    telemetry: Annotated[
        Literal["off", "otlp", "azure-monitor"],
        About(
            "Where traces and metrics go: otlp, as the OTEL_* variables say, or azure-monitor, by"
            " APPLICATIONINSIGHTS_CONNECTION_STRING."
        ),
    ] = "off"
    trace_parent: Annotated[
        Literal["link", "parent"],
        About("Whether an attempt is linked to the span of its push, or is its child in the same trace."),
    ] = "link"
    connection_string: Annotated[
        str | None,
        About(
            "Signs in to a storage account or namespace; AZURE_STORAGE_CONNECTION_STRING serves too.",
            unset="the identity of this machine or user",
            accepts="a connection string",
            is_secret=True,
        ),
    ] = None
    http_token: Annotated[
        str | None,
        About(
            "The token for a jobq service (http:// and https:// queues).",
            unset="none",
            accepts="a token that `jobq serve token create` has printed",
            is_secret=True,
        ),
    ] = None
    azurite: Annotated[Switch, About("Uses the storage emulator on this machine.", audience="tests")] = False
    endpoint_suffix: Annotated[
        str, About("Of the host names in a sovereign cloud, such as core.chinacloudapi.cn.", accepts="a domain")
    ] = "core.windows.net"
    poll_max: Annotated[
        Duration, About("The longest pause between two looks into an empty Storage Queue, which bills each look.")
    ] = timedelta(seconds=10)
    service_bus_lock_duration: Annotated[
        Duration | None,
        About(
            "What a lock of Service Bus counts for, where it is shorter than what the queue grants.",
            unset="what the queue grants",
        ),
    ] = None
    service_bus_dedup_window: Annotated[
        Duration | None,
        About(
            "For how long a Service Bus queue that jobq makes remembers ids (0 = not at all); says so, too, of a queue"
            " that this identity may not look at.",
            unset="10m for a new queue",
        ),
    ] = None
    service_bus_websocket: Annotated[
        Switch,
        About(
            "Reaches Service Bus over WebSockets (port 443, and through HTTPS_PROXY) where AMQP's port 5671 is closed;"
            " everything but dead letters and looks goes over HTTPS in any case."
        ),
    ] = False
    sqlite_adopt: Annotated[Switch, About("Takes over an SQLite queue that another machine made.")] = False
    journal: Annotated[
        Journal,
        About(
            "Whether what becomes of tasks is kept: auto = in the database of an SQL queue; tables = of an Azure queue,"
            " in a table of its storage account; tables://ACCOUNT = of another.",
            accepts="auto, off, tables or tables://ACCOUNT",
        ),
    ] = "auto"
    journal_connection_string: Annotated[
        str | None,
        About(
            "Signs in to the storage account of tables://ACCOUNT.",
            unset="the queue's own for its own account, else the identity of this machine or user",
            accepts="a connection string",
            is_secret=True,
        ),
    ] = None
    keep: Annotated[Duration, About("For how long the journal keeps what has ended.")] = timedelta(days=30)
    journal_max: Annotated[
        Size, About("How much the journal of a queue may hold; the output of what ended first goes first.")
    ] = 1024**3
    log_dir: Annotated[
        PlaceText | None,
        About(
            "Where a worker writes what tasks print, all of it.",
            unset="it is not written",
            accepts="a folder, or az://ACCOUNT/CONTAINER",
        ),
    ] = None
    checkpoint_store: Annotated[
        PlaceText | None,
        About(
            "Where a worker keeps the files that tasks save from JOBQ_CHECKPOINT_DIR.",
            unset="tasks have no such folder",
            accepts="a folder that all workers share, or az://ACCOUNT/CONTAINER",
        ),
    ] = None
    checkpoint_max: Annotated[Size, About("How much one task's checkpoint folder may hold.")] = 1024**3
    kill_margin: Annotated[
        Duration, About("K of the timing rule: to kill and confirm before a lease expires.", audience="tests")
    ] = timedelta(seconds=1)
    schedule_margin: Annotated[Duration, About("J of the timing rule: for the scheduler.", audience="tests")] = (
        timedelta(seconds=0.5)
    )

    @property
    def kept(self) -> timedelta | None:
        """For how long the journal keeps what has ended; None = it is off."""
        return None if self.journal == "off" else self.keep

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Read the environment (os.environ by default); `overrides` that are not None win, as flags do."""
        source = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for name in cls.model_fields:
            text = source.get(variable_of(name))
            if text:  # an empty variable is as good as none: compose files leave them
                values[name] = text
        if spec := _spec_of_ai4s(source):
            values["queue"] = spec
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls._valid(
            values, lambda name: f"--{name.replace('_', '-')}" if overrides.get(name) is not None else variable_of(name)
        )

    def changed(self, **fields: Any) -> Self:
        """Return these settings with other values for some; raises ConfigurationError, which names the field."""
        return self._valid({**self.model_dump(), **fields}, str)

    @classmethod
    def _valid(cls, values: Mapping[str, Any], shown: Callable[[str], str]) -> Self:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            message = first["msg"].removeprefix("Value error, ")
            raise ConfigurationError(f"{shown(str(first['loc'][0]))}: {message}") from None


def _spec_of_ai4s(source: Mapping[str, str]) -> str | None:
    """Return the queue as ai4s-jobq's variables name it: a bare name in JOBQ_QUEUE is no queue of this machine then."""
    storage, queue = source.get(_STORAGE), source.get(variable_of("queue"))
    if storage and queue and "/" not in queue:
        return f"{storage.rstrip('/')}/{queue}"
    return None if queue else source.get(_STORAGE_QUEUE)


def user_home(settings: Settings) -> Path:
    """Return the folder of the embedded queue: JOBQ_HOME, else the platform's folder for user data."""
    if settings.home is not None:
        return settings.home.expanduser()
    import platformdirs  # noqa: PLC0415 - needed by the embedded queue only

    return Path(platformdirs.user_data_dir("jobq", appauthor=False))


def variable_of(name: str) -> str:
    """Return the variable of a setting."""
    return _PREFIX + name.upper()


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names in an environment that look like ours and are not: a typo would be silent otherwise."""
    known = {variable_of(name) for name in Settings.model_fields} | TASK_VARIABLES | {_STORAGE, _STORAGE_QUEUE}
    return sorted(name for name in environment if is_ours(name) and name not in known)


def is_ours(variable: str) -> bool:
    """Return whether a variable is jobq's own, which no task inherits (rules.md 3, A6)."""
    return variable.startswith(_PREFIX)
