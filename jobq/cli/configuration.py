"""The settings for people: each with its value and where that came from, and docs/configuration.md.

The settings themselves, and the only reader of the variables, are in `jobq.settings`.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from jobq.formats import durations, sizes
from jobq.setting_kinds import Setting, memory_limit, size
from jobq.settings import Settings, named_queue, variable_of

HIDDEN: Final = "(set, not shown)"
_SUSPICIOUS: Final = "@?&;"  # a spec with one of these may hold a secret, and will be refused when it is used (A5)
_WIDEST: Final = 120


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One setting.

    Attributes:
        name: of the field.
        variable: that sets it.
        value: as people write it; None = unset.
        default: likewise.
        origin: the variable's name, or "default".
        about: what it is for, and what may be written.
    """

    name: str
    variable: str
    value: str | None
    default: str | None
    origin: str
    about: Setting


def explain(environment: Mapping[str, str] | None = None) -> list[Explained]:
    """Return every setting as this environment (os.environ by default) sets it; raises ConfigurationError."""
    source = os.environ if environment is None else environment
    settings = Settings.from_environment(source)
    queue_variable, _ = named_queue(source) or ("", "")
    return [
        Explained(
            name=name,
            variable=variable_of(name),
            value=_value(name, getattr(settings, name), about),
            default=_text(about.default, about),
            origin=(queue_variable if name == "queue" else source.get(variable_of(name)) and variable_of(name))
            or "default",
            about=about,
        )
        for name, about in Settings.FIELDS.items()
        if isinstance(about, Setting)
    ]


def _value(name: str, value: Any, about: Setting) -> str | None:
    text = _text(value, about)
    if text is not None and (about.is_secret or (name == "queue" and any(mark in text for mark in _SUSPICIOUS))):
        return HIDDEN
    return text


def _text(value: Any, about: Setting) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "on" if value else "off"
        case tuple():
            return ",".join(value) or None
        case timedelta():
            return durations.show(value)
        case int() if about.kind in (size, memory_limit):
            return sizes.show(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def markdown() -> str:
    """Return docs/configuration.md; `make docs` writes it, and a test keeps it true."""
    rows = explain({})
    tables = [
        _table([row for row in rows if row.about.audience == audience]) for audience in ("users", "tests", "jobq")
    ]
    return _PAGE.format(users=tables[0], tests=tables[1], jobq=tables[2])


def option_of(setting: str) -> str:
    """Return the option of a setting that has one."""
    return _NAMED_OTHERWISE.get(setting, f"--{setting.replace('_', '-')}")


def _table(rows: list[Explained]) -> str:
    lines = ["| variable | option | default | accepts | what it decides |", "|---|---|---|---|---|"]
    for row in rows:
        default = row.about.unset or row.default or "none"
        option = f"`{option_of(row.name)}`" if row.name in _OPTIONS else ""
        lines.append(f"| `{row.variable}` | {option} | {default} | {row.about.accepts} | {row.about.text} |")
    return "\n".join(lines)


# The options of `push` and `worker` that a variable stands behind; a test compares them with the commands themselves.
_OPTIONS: Final = frozenset(
    {
        "visibility_timeout",
        "num_workers",
        "offer_cpus",
        "offer_gpus",
        "offer_memory",
        "tags",
        "num_retries",
        "max_crashes",
        "max_preemptions",
        "backoff",
        "backoff_max",
        "stop_grace",
        "idle_timeout",
        "max_consecutive_failures",
        "time_limit",
        "memory_limit",
        "load",
        "memfree",
        "quiet_output",
        "guardian",
        "metrics_port",
        "restart",
        "log_format",
        "view",
        "keep",
        "log_dir",
        "checkpoint_store",
        "on_exit",
    }
)
_NAMED_OTHERWISE: Final = {  # what a task finds of its grant has the plain names: JOBQ_CPUS
    "offer_cpus": "--cpus",
    "offer_gpus": "--gpus",
    "offer_memory": "--memory",
    "tags": "--tag",
}
_PAGE: Final = """# Configuration

*Made by `make docs` from `jobq/settings.py`; edit that instead.*

Every setting is a variable. An option on the command line wins over its variable, which wins over the default. An empty
variable counts as none. A value that makes no sense is refused at start with the variable's name; a variable
that begins with `JOBQ_` and is not known is warned about. `jobq config` shows what is in force and where it came from.

{users}

Colours follow `NO_COLOR` and `FORCE_COLOR`. The lease can be set per worker; the three budgets, the delay and the
time-out travel with each task, as `push` sets them.

## For tests

{tests}

## Set by jobq itself

{jobq}

What a task finds in its environment: [here](running-tasks.md#a-tasks-environment).
"""

if __name__ == "__main__":
    sys.stdout.write(markdown())
