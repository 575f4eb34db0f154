"""All settings with their defaults, read from JOBQ_* variables (architecture 11 names what else is read, and where)."""

import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Self

from jobq import setting_kinds as kinds
from jobq.errors import ConfigurationError
from jobq.formats.checked import Checked, FieldError
from jobq.formats.user_paths import user_path

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
        "JOBQ_SLOT",
        "JOBQ_CPUS",
        "JOBQ_GPUS",
        "JOBQ_MEMORY",
    }
)
AUTO_SLOTS: Final = kinds.AUTO_SLOTS
STORAGE: Final = "JOBQ_STORAGE"  # this and the next as ai4s-jobq has them
STORAGE_QUEUE: Final = "JOBQ_STORAGE_QUEUE"


class Settings(Checked):
    """Everything that can be set, with its default; a field NAME is the variable JOBQ_NAME.

    Raises:
        ConfigurationError: from `from_environment` and `changed`; names the variable, the option or the field.
        FieldError: from `__init__`.
    """

    queue: str | None = kinds.setting(
        kinds.text, "The queue, when the command line names none.", accepts="a queue spec"
    )
    home: Path | None = kinds.setting(
        kinds.path, "Where embedded queues live.", unset="the user's data folder", accepts="a folder"
    )
    visibility_timeout: timedelta | None = kinds.setting(
        kinds.duration, "The lease that a worker asks for and renews.", unset="the queue's own"
    )
    lease_ttl: timedelta | None = kinds.setting(
        kinds.duration,
        "How long a named lease outlasts its holder's last renewal.",
        unset="1m for `lease run`, 20s for `push --resume` and `fanout`",
    )
    leases: str | None = kinds.setting(
        kinds.text,
        "The queue whose named leases carry the cursors of `push --resume` and `fanout`.",
        unset="the one that is pushed to",
        accepts="a queue spec",
    )
    allow_short_lease: bool = kinds.setting(kinds.switch, "Permits leases under 10 s.", default=False, audience="tests")
    num_workers: int = kinds.setting(
        kinds.slots,
        "Slots: how many tasks a worker runs at once; auto = as many as fit what it offers, where one that asks for no"
        " processor counts as one.",
        default=1,
    )
    offer_cpus: Literal["auto"] | int | None = kinds.setting(
        kinds.offered_cpus,
        "The processors that a worker offers to tasks that ask for some (`push --cpus`); kept in thousandths.",
        unset="none",
    )
    offer_gpus: tuple[str, ...] | None = kinds.setting(
        kinds.offered_gpus, "The GPUs that a worker offers (`push --gpus`).", unset="none"
    )
    offer_memory: Literal["auto"] | int | None = kinds.setting(
        kinds.offered_memory, "The memory that a worker offers (`push --mem`).", unset="none"
    )
    tags: tuple[str, ...] = kinds.setting(
        kinds.tags,
        "What a worker goes by: it takes tasks that need some of it, too (`push --needs`).",
        default=(),
        unset="none",
    )
    num_retries: int = kinds.setting(kinds.count(0), "Retries after a failure that `push` gives to a task.", default=3)
    on_exit: tuple[str, ...] = kinds.setting(
        kinds.words,
        "Exit rules that `push` gives to a task: CODE, SIGNAL, oom or timeout, =, and retry, fail or delay:10m.",
        default=(),
        unset="the budgets alone decide",
        accepts="rules, separated by commas",
    )
    max_crashes: int = kinds.setting(kinds.count(0), "Crashes and lost leases that `push` forgives a task.", default=3)
    max_preemptions: int = kinds.setting(
        kinds.count(0), "How often a task may be given back, as `push` sets it.", default=100
    )
    backoff: timedelta = kinds.setting(
        kinds.duration,
        "The longest delay after a first failure; doubles, with full jitter.",
        default=timedelta(seconds=5),
    )
    backoff_max: timedelta = kinds.setting(kinds.duration, "Where doubling stops.", default=timedelta(minutes=10))
    lock_lost_behavior: Literal["sigkill", "sigterm"] = kinds.setting(
        kinds.one_of("sigkill", "sigterm"),
        "What a task gets when its lease cannot be kept; SIGTERM comes before.",
        default="sigkill",
    )
    lock_lost_grace: timedelta = kinds.setting(
        kinds.duration, "From SIGTERM to SIGKILL when a lease cannot be kept.", default=timedelta(seconds=10)
    )
    stop_grace: timedelta = kinds.setting(
        kinds.duration, "From SIGTERM to SIGKILL for tasks when the worker stops.", default=timedelta(seconds=20)
    )
    idle_timeout: timedelta | None = kinds.setting(
        kinds.duration, "How long an empty queue is watched before the worker ends.", unset="it ends when empty"
    )
    max_consecutive_failures: int = kinds.setting(
        kinds.count(0),
        "First failures of different tasks in a row that end the worker with code 1; one more for each task that"
        " succeeded here in the last 10 min, at most five times as many. 0 = never.",
        default=10,
    )
    time_limit: timedelta | None = kinds.setting(kinds.duration, "How long a worker takes new tasks.", unset="no limit")
    memory_limit: int | None = kinds.setting(
        kinds.memory_limit,
        "What a task's whole process tree may use before it is killed. Callbacks inside the worker have none.",
        unset="no limit",
    )
    load: float | None = kinds.setting(
        kinds.load,
        "Start nothing new while the machine's load is above this: threads that want a processor, on average over the"
        " last minute or now. What runs is not touched.",
        unset="no limit",
    )
    memfree: int | None = kinds.setting(
        kinds.size, "Start nothing new while less memory than this is free on the machine.", unset="no limit"
    )
    task_env: Literal["inherit", "clean"] = kinds.setting(
        kinds.one_of("inherit", "clean"), "Whether tasks inherit the worker's environment.", default="inherit"
    )
    allow_commands: tuple[str, ...] = kinds.setting(
        kinds.words,
        "The only programs that a worker runs, where it is set: the first word of commands without a shell; or,"
        " with a ^ in front, a regular expression for the whole of any command, a shell's text too.",
        default=(),
        unset="it runs all that is queued",
        accepts="names or regular expressions, separated by commas (a comma within one is \\x2c)",
    )
    allow_calls: tuple[str, ...] = kinds.setting(
        kinds.words,
        "The only functions that a worker calls, where it is set.",
        default=(),
        unset="it calls all that is queued",
        accepts="package.module:function, separated by commas",
    )
    allow_variables: tuple[str, ...] = kinds.setting(
        kinds.words,
        "The variables that a task may bring to a worker with a list of commands or functions.",
        default=(),
        unset="none",
        accepts="names or patterns such as PARAM_*, separated by commas",
    )
    require_signed: Literal["off", "warn", "on"] = kinds.setting(
        kinds.one_of("off", "warn", "on"),
        "Whether a worker runs only tasks that a key of JOBQ_TRUSTED_KEYS has signed for its queue; warn = it runs"
        " others too, and says what `on` would do.",
        default="off",
    )
    trusted_keys: Path | None = kinds.setting(
        kinds.path,
        "The file with the keys that a worker trusts, as `jobq keys trust` writes it; read again when it changes.",
        unset="none",
        accepts="a path",
    )
    sign_key_file: Path | None = kinds.setting(
        kinds.path,
        "The key with which `push` signs, as `jobq keys new` writes it: readable by its owner alone.",
        unset="tasks are not signed",
        accepts="a path",
    )
    sign_command: str | None = kinds.setting(
        kinds.text,
        "A program that signs instead: given lines of base64, what is to be signed, it writes a line with the"
        " signature for each.",
        unset="none",
        accepts="a program with arguments",
    )
    sign_key_id: str | None = kinds.setting(
        kinds.text, "The id of the key that this program has.", unset="none", accepts="an id"
    )
    sign_for: timedelta = kinds.setting(
        kinds.duration,
        "For how long what `push` signs may be run, from when it is pushed or due.",
        default=timedelta(days=30),
    )
    audience: tuple[str, ...] = kinds.setting(
        kinds.words,
        "What the place of the queues is called in signed tasks, where pushing and working name it otherwise; the"
        " first one is signed for.",
        default=(),
        unset="as the queue spec has it",
        accepts="names, separated by commas",
    )
    guardian: Literal["on", "off"] = kinds.setting(
        kinds.one_of("on", "off"),
        "Whether a guardian owns the tasks; off is weaker, and the worker says how.",
        default="on",
    )
    containment: Literal["auto", "cgroup", "off"] = kinds.setting(
        kinds.one_of("auto", "cgroup", "off"),
        "What holds a worker's tasks together for the kernel: auto = a control group where this user may make one"
        " and no task would notice; cgroup = one in any case, or the worker refuses to start; off = none."
        " `jobq config` says what it comes to here.",
        default="auto",
    )
    event_loop: Literal["asyncio", "uvloop"] = kinds.setting(
        kinds.one_of("asyncio", "uvloop"),
        "The event loop of `worker` and `run`: uvloop, where it is installed, takes less CPU for short tasks.",
        default="asyncio",
    )
    launcher: Literal["auto", "off"] = kinds.setting(
        kinds.one_of("auto", "off"),
        "What starts tasks for the guardian: auto = a small program in C, where it was built and lies on a disk of this"
        " machine, for a third of the CPU; off = the guardian forks. `jobq config` says what it comes to here.",
        default="auto",
    )
    guardian_fd: int | None = kinds.setting(kinds.count(0), "The worker's socket to its guardian.", audience="jobq")
    guardian_restarted: bool = kinds.setting(
        kinds.switch, "The worker's predecessor died.", default=False, audience="jobq"
    )
    restart: int = kinds.setting(kinds.count(0), "How often a worker that a signal killed is started again.", default=0)
    scheduled_events: Literal["auto", "on", "off"] = kinds.setting(
        kinds.one_of("auto", "on", "off"),
        "Whether Azure is asked for notices of preemption; auto = where its metadata service answers.",
        default="auto",
    )
    imds_url: str = kinds.setting(
        kinds.text, "That service.", default="http://169.254.169.254", accepts="a URL", audience="tests"
    )
    log_format: Literal["auto", "text", "json"] = kinds.setting(
        kinds.one_of("auto", "text", "json"),
        "Of the worker's log; auto = text on a terminal, json elsewhere.",
        default="auto",
    )
    view: Literal["auto", "live", "lines"] = kinds.setting(
        kinds.one_of("auto", "live", "lines"),
        "What `worker` and `run` show on a terminal; auto = a live table of the slots, unless output is piped.",
        default="auto",
    )
    quiet_output: bool = kinds.setting(
        kinds.switch,
        "Whether `worker` and `run` leave out what tasks print, which the journal has.",
        default=False,
    )
    health_file: Path | None = kinds.setting(
        kinds.path,
        "A file that the worker writes every 5 s while it lives; `jobq healthcheck` reads it.",
        unset="none",
        accepts="a path",
    )
    termination_grace: timedelta | None = kinds.setting(
        kinds.duration,
        "How long the platform leaves a worker from SIGTERM to SIGKILL; the worker warns where its own stop takes"
        " longer.",
        unset="not checked",
    )
    metrics_port: int | None = kinds.setting(
        kinds.count(1, 65535), "Where a worker serves /metrics for Prometheus, and /healthz.", unset="nowhere"
    )
    metrics_host: str = kinds.setting(
        kinds.text, "The address of these; 0.0.0.0 lets other machines in.", default="127.0.0.1", accepts="an address"
    )
    telemetry: Literal["off", "otlp", "azure-monitor"] = kinds.setting(
        kinds.one_of("off", "otlp", "azure-monitor"),
        "Where traces and metrics go: otlp, as the OTEL_* variables say, or azure-monitor, by"
        " APPLICATIONINSIGHTS_CONNECTION_STRING.",
        default="off",
    )
    trace_parent: Literal["link", "parent"] = kinds.setting(
        kinds.one_of("link", "parent"),
        "Whether an attempt is linked to the span of its push, or is its child in the same trace.",
        default="link",
    )
    connection_string: str | None = kinds.setting(
        kinds.text,
        "Signs in to a storage account or namespace; AZURE_STORAGE_CONNECTION_STRING serves too.",
        unset="the identity of this machine or user",
        accepts="a connection string",
        is_secret=True,
    )
    http_token: str | None = kinds.setting(
        kinds.text,
        "The token for a jobq service (http:// and https:// queues).",
        unset="none",
        accepts="a token that `jobq serve token create` has printed",
        is_secret=True,
    )
    azurite: bool = kinds.setting(
        kinds.switch, "Uses the storage emulator on this machine.", default=False, audience="tests"
    )
    endpoint_suffix: str = kinds.setting(
        kinds.text,
        "Of the host names in a sovereign cloud, such as core.chinacloudapi.cn.",
        default="core.windows.net",
        accepts="a domain",
    )
    poll_max: timedelta = kinds.setting(
        kinds.duration,
        "The longest pause between two looks into an empty Storage Queue, which bills each look.",
        default=timedelta(seconds=10),
    )
    service_bus_lock_duration: timedelta | None = kinds.setting(
        kinds.duration,
        "What a lock of Service Bus counts for, where it is shorter than what the queue grants.",
        unset="what the queue grants",
    )
    service_bus_dedup_window: timedelta | None = kinds.setting(
        kinds.duration,
        "For how long a Service Bus queue that jobq makes remembers ids (0 = not at all); says so, too, of a queue"
        " that this identity may not look at.",
        unset="10m for a new queue",
    )
    service_bus_websocket: bool = kinds.setting(
        kinds.switch,
        "Reaches Service Bus over WebSockets (port 443, and through HTTPS_PROXY) where AMQP's port 5671 is closed;"
        " everything but dead letters and looks goes over HTTPS in any case.",
        default=False,
    )
    sqlite_adopt: bool = kinds.setting(
        kinds.switch, "Takes over an SQLite queue that another machine made.", default=False
    )
    journal: str = kinds.setting(
        kinds.journal_place,
        "Whether what becomes of tasks is kept: auto = in the database of an SQL queue; tables = of a Storage Queue,"
        " in a table of its storage account; tables://ACCOUNT = of another.",
        default="auto",
        accepts="auto, off, tables or tables://ACCOUNT",
    )
    journal_connection_string: str | None = kinds.setting(
        kinds.text,
        "Signs in to the storage account of tables://ACCOUNT.",
        unset="the queue's own for its own account, else the identity of this machine or user",
        accepts="a connection string",
        is_secret=True,
    )
    keep: timedelta = kinds.setting(
        kinds.duration, "For how long the journal keeps what has ended.", default=timedelta(days=30)
    )
    journal_max: int = kinds.setting(
        kinds.size,
        "How much the journal of a queue may hold; the output of what ended first goes first.",
        default=1024**3,
    )
    log_dir: str | None = kinds.setting(
        kinds.place,
        "Where a worker writes what tasks print, all of it.",
        unset="it is not written",
        accepts="a folder, or az://ACCOUNT/CONTAINER",
    )
    checkpoint_store: str | None = kinds.setting(
        kinds.place,
        "Where a worker keeps the files that tasks save from JOBQ_CHECKPOINT_DIR.",
        unset="tasks have no such folder",
        accepts="a folder that all workers share, or az://ACCOUNT/CONTAINER",
    )
    checkpoint_max: int = kinds.setting(kinds.size, "How much one task's checkpoint folder may hold.", default=1024**3)
    kill_margin: timedelta = kinds.setting(
        kinds.duration,
        "K of the timing rule: to kill and confirm before a lease expires.",
        default=timedelta(seconds=1),
        audience="tests",
    )
    schedule_margin: timedelta = kinds.setting(
        kinds.duration, "J of the timing rule: for the scheduler.", default=timedelta(seconds=0.5), audience="tests"
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
        for name in cls.FIELDS:
            text = source.get(variable_of(name))
            if text:  # an empty variable is as good as none: compose files leave them
                values[name] = text
        if named := named_queue(source):
            values["queue"] = named[1]
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls._valid(
            values, lambda name: f"--{name.replace('_', '-')}" if overrides.get(name) is not None else variable_of(name)
        )

    def changed(self, **fields: Any) -> Self:
        """Return these settings with other values for some; raises ConfigurationError, which names the field."""
        checked = self._valid(fields, str)
        return self.copied({name: getattr(checked, name) for name in fields})

    @classmethod
    def _valid(cls, values: Mapping[str, Any], shown: Callable[[str], str]) -> Self:
        try:
            return cls(values)
        except FieldError as error:
            raise ConfigurationError(f"{shown(error.where)}: {error.what}") from None


def named_queue(source: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the variable that names the queue, and the spec; ai4s-jobq's never mean a queue of this machine."""
    variable = variable_of("queue")
    storage, queue = source.get(STORAGE), source.get(variable)
    if storage and queue and "/" not in queue:
        return STORAGE, f"{storage.rstrip('/')}/{queue}"
    named = variable if queue else STORAGE_QUEUE
    return (named, source[named]) if source.get(named) else None


def user_home(settings: Settings) -> Path:
    """Return the folder of the embedded queue: JOBQ_HOME, else the platform's folder for user data."""
    if settings.home is not None:
        return user_path(settings.home, "JOBQ_HOME")
    given = os.environ.get("XDG_DATA_HOME", "")  # the XDG Base Directory Specification
    folder = (
        given if given.strip() else "~/Library/Application Support" if sys.platform == "darwin" else "~/.local/share"
    )
    what = "XDG_DATA_HOME" if given.strip() else "the folder of the embedded queue (JOBQ_HOME)"
    return user_path(Path(folder, "jobq"), what)


def variable_of(name: str) -> str:
    """Return the variable of a setting."""
    return _PREFIX + name.upper()


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names in an environment that look like ours and are not: a typo would be silent otherwise."""
    known = {variable_of(name) for name in Settings.FIELDS} | TASK_VARIABLES | {STORAGE, STORAGE_QUEUE}
    return sorted(name for name in environment if is_ours(name) and name not in known)


def is_ours(variable: str) -> bool:
    """Return whether a variable is jobq's own, which no task inherits (rules.md 3, A6)."""
    return variable.startswith(_PREFIX)
