"""What kinds of values settings take, and what describes a setting beside its value."""

import math
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from jobq.files.location import checked_place
from jobq.formats import durations, sizes
from jobq.formats.checked import Field
from jobq.formats.checked import text as checked_text
from jobq.resources import request

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})
AUTO_SLOTS: Final = -1  # stands for `auto`
_LEAST_LIMIT_BYTES: Final = 1024 * 1024  # less is a unit left out: no program runs in it


class Setting(Field):
    """A setting: what may be written, and what it is for, shown by `jobq config` and in docs/configuration.md.

    Attributes:
        kind: what values it takes.
        text: what it decides.
        unset: what happens when it has no value.
        accepts: what may be written.
        is_secret: its value is never shown.
        audience: "users", or "tests" and "jobq" for what is set by these alone.
    """

    __slots__ = ("accepts", "audience", "is_secret", "kind", "text", "unset")

    def __init__(
        self, kind: "SettingKind", text: str, default: Any, *, unset: str, accepts: str, is_secret: bool, audience: str
    ) -> None:
        super().__init__(kind.read, default, None, is_shown=not is_secret)
        self.kind = kind
        self.text = text
        self.unset = unset
        self.accepts = accepts or kind.accepts
        self.is_secret = is_secret
        self.audience = audience


class SettingKind:
    """What values a setting takes.

    Args:
        read: returns the value, from a variable's text or as a program gives it; raises ValueError.
        accepts: what may be written.
    """

    __slots__ = ("accepts", "read")

    def __init__(self, read: Callable[[Any], Any], accepts: str) -> None:
        self.read = read
        self.accepts = accepts


def setting(
    kind: SettingKind,
    text: str,
    *,
    default: Any = None,
    unset: str = "",
    accepts: str = "",
    is_secret: bool = False,
    audience: Literal["users", "tests", "jobq"] = "users",
) -> Any:
    """Declare a setting; see `Setting`."""
    return Setting(kind, text, default, unset=unset, accepts=accepts, is_secret=is_secret, audience=audience)


def one_of(*words: str) -> SettingKind:
    """Return the kind of a setting that is one of some words."""
    accepts = ", ".join(words)

    def read(value: Any) -> str:
        word = str(value).lower()
        if word not in words:
            raise ValueError(f"{value!r} is none of {accepts}")
        return word

    return SettingKind(read, accepts)


def count(least: int, most: int | None = None) -> SettingKind:
    """Return the kind of a setting that is a whole number."""
    accepts = f"a number from {least}" if most is None else f"a number from {least} to {most}"

    def read(value: Any) -> int:
        try:
            number = int(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        if type(number) is not int or number < least or (most is not None and number > most):
            raise ValueError(f"{value!r:.100} is not {accepts}")
        return number

    return SettingKind(read, accepts)


def _slots(value: Any) -> int:
    if value == "auto":
        return AUTO_SLOTS
    found: int = _some_slots.read(value)
    return found


def _offered_cpus(value: Any) -> int | str:
    return "auto" if value == "auto" else request.cpus(request.count(value))


def _offered_gpus(value: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = words.read(value)
    for name in found:
        if not re.fullmatch(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+", name) and found != ("auto",):
            raise ValueError(f"{name!r:.80} is no GPU: an index, as nvidia-smi has it, or an id")
    return tuple(dict.fromkeys(found))


def _offered_memory(value: Any) -> int | str:
    return "auto" if value == "auto" else _memory_limit(value)


def _tags(value: Any) -> tuple[str, ...]:
    return tuple(request.tag(each) for each in words.read(value))


def _duration(value: Any) -> timedelta:
    if isinstance(value, str):
        return durations.parse(value)
    if not isinstance(value, timedelta):
        raise ValueError(f"{value!r:.100} is no time span, such as timedelta(minutes=5) or '5m'")
    return value


def _size(value: Any) -> int:
    found = sizes.parse(value) if isinstance(value, str) else value
    if type(found) is not int or found < 1:
        raise ValueError(f"{value!r:.100} is not a size of one byte or more, such as 512M or 2G")
    return found


def _load(value: Any) -> float:
    try:
        if isinstance(value, str) and value.endswith("%"):
            found = float(value[:-1]) / 100 * len(os.sched_getaffinity(0))
        else:
            found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise ValueError(f"{value!r:.100} is no load above 0, such as 7.5, or 80% of the processors")
    return found


def _memory_limit(value: Any) -> int:
    found = _size(value)
    if found < _LEAST_LIMIT_BYTES:
        raise ValueError(f"{sizes.show(found)} is too little for any program; was a unit left out, as in {found}M?")
    return found


def _switch(value: Any) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if isinstance(word, bool):
        return word
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{value!r} is neither on (1, true, yes) nor off (0, false, no)")
    return word in _TRUE


def _journal(value: Any) -> str:
    found = checked_text(value).strip()
    if found in ("auto", "off", "tables") or (found.startswith("tables://") and found != "tables://"):
        return found.rstrip("/")
    raise ValueError(f"{value!r} is no place for a journal: auto, off, tables, or tables://ACCOUNT")


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return tuple(checked_text(word) for word in value)


text: Final = SettingKind(checked_text, "a text")
path: Final = SettingKind(Path, "a path")
duration: Final = SettingKind(_duration, "a duration: 90s, 10m, 1h30m")
size: Final = SettingKind(_size, "a size: 512M, 2G")
load: Final = SettingKind(_load, "a number, or a percentage of the processors: 7.5, 80%")
memory_limit: Final = SettingKind(_memory_limit, "a size: 512M, 2G")
switch: Final = SettingKind(_switch, "on, off")
words: Final = SettingKind(_words, "words, separated by commas")
place: Final = SettingKind(lambda value: checked_place(checked_text(value)), "a folder, or az://ACCOUNT/CONTAINER")
_some_slots: Final = count(1, 4096)
slots: Final = SettingKind(_slots, "auto, or a number from 1 to 4096")
offered_cpus: Final = SettingKind(_offered_cpus, "auto, or a number: 12, 0.5")
offered_gpus: Final = SettingKind(_offered_gpus, "auto, or indices or ids, separated by commas")
offered_memory: Final = SettingKind(_offered_memory, "auto, or a size: 512M, 2G")
tags: Final = SettingKind(_tags, "tags, separated by commas")
journal_place: Final = SettingKind(_journal, "auto, off, tables or tables://ACCOUNT")
