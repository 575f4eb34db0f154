"""What the fields of a task may hold: each check returns what is kept, and raises ValueError for what is refused."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from jobq.formats import checked, exit_rules, task_ids, wire_v3
from jobq.formats.checked import FieldError, integer, kind_of, number

_MOST: Final = 2**31 - 1
MAX_EPOCH: Final = 2**53 - 1  # what every reader of JSON can count to
_MOST_RULES: Final = 32
MOST_PARAMS_BYTES: Final = 4096
_MOST_PARAM_BYTES: Final = 1000  # of one that is taken from arguments or records
count: Final = integer(0, _MOST)
epoch: Final = integer(0, MAX_EPOCH)
priority: Final = integer(-(2**31), _MOST)


def text(value: Any) -> str:
    """A text that a program can be given."""
    found = checked.text(value)
    # execve ends strings at NUL: a command with one would run as something else, or not at all.
    if "\0" in found:
        raise ValueError("holds a NUL byte")
    if not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError:  # bytes that Python has read as lone surrogates, which JSON cannot hold
            raise ValueError("holds bytes that are not UTF-8") from None
    return found


def filled(value: Any) -> str:
    """A text that is not empty."""
    if value == "":
        raise ValueError("is empty")
    return text(value)


def variables(value: Any) -> dict[str, str]:
    """Environment variables, or what is as good."""
    for name, held in mapping(value).items():
        try:
            if not text(name) or "=" in name:
                raise ValueError("is not the name of an environment variable")
            text(held)
        except ValueError as error:
            raise FieldError(str(error), str(name)) from None
    return dict(value)


def argv(value: Any) -> tuple[str, ...]:
    """A program and its arguments."""
    words = _array(value, text)
    if not words or not words[0]:
        raise ValueError("names no program")
    return words


def rules(value: Any) -> tuple[str, ...]:
    """Exit rules."""
    found = _array(value, _rule)
    if len(found) > _MOST_RULES:
        raise ValueError(f"has {len(found)} rules, at most {_MOST_RULES} are taken")
    return found


def identifier(value: Any) -> str:
    """The id of a task."""
    found = checked.text(value)
    if not task_ids.VALID.fullmatch(found):
        raise ValueError("must be 1 to 100 letters, digits or ._:@+=- and begin with a letter or digit")
    return found


def function(value: Any) -> str:
    """The name of a function that can be imported."""
    found = checked.text(value)
    module, colon, name = found.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError("must name a function as package.module:function")
    return found


def seconds(value: Any) -> float:
    """A time span."""
    found = number(value)
    if found <= 0:
        raise ValueError("is not more than 0 seconds")
    return found


def moment(value: Any) -> float:
    """A wall time."""
    found = number(value)
    if not 0 <= found <= wire_v3.FAR_FUTURE_SECONDS:
        raise ValueError("is not a time in seconds since 1970")
    return found


def mapping(value: Any) -> dict[str, Any]:
    """What JSON calls an object."""
    if not isinstance(value, dict):
        raise ValueError(f"is {kind_of(value)}, not an object")
    return value


def signed(value: Any) -> wire_v3.Work:
    """What a producer has signed; a message has it under no name."""
    if not isinstance(value, wire_v3.Work):
        raise ValueError("unknown field")
    return value


def batch(value: Any) -> str:
    """The name of a batch."""
    found = checked.text(value)
    if not task_ids.BATCH.fullmatch(found):
        raise ValueError("must be 1 to 64 letters, digits or ._- and begin with a letter or digit")
    return found


def params(value: Any) -> dict[str, str | int | float]:
    """What a table of results shows of a task: texts and numbers by name."""
    given: dict[Any, Any] = mapping(value)
    for name, held in given.items():
        if not isinstance(name, str) or not task_ids.PARAM.fullmatch(name):
            raise FieldError("is no name of letters, digits and _ that begins with none of the digits", str(name))
        try:
            if type(held) is str:
                text(held)
            else:
                number(held)  # an integer, too: one beyond a float's range is no JSON of ours (strict_json)
        except ValueError as error:
            raise FieldError(str(error), name) from None
    if len(json.dumps(value)) > MOST_PARAMS_BYTES:
        raise ValueError(f"has more than {MOST_PARAMS_BYTES} bytes")
    return dict(value)


def fitting_params(given: Mapping[str, Any]) -> dict[str, str | int | float] | None:
    """Return what of some values can be params: short texts and numbers, as far as there is room; None = nothing."""
    found: dict[str, str | int | float] = {}
    room = MOST_PARAMS_BYTES - len("{}")
    for name, value in given.items():
        if type(value) not in (str, int, float) or not task_ids.PARAM.fullmatch(name):
            continue
        size = len(json.dumps({name: value}))
        if size <= min(room, _MOST_PARAM_BYTES):
            found[name] = value
            room -= size
    return found or None


def odd_for_json(value: object) -> str:
    """Return what within a value would arrive as something else, such as a tuple or a number as a name; or nothing."""
    if isinstance(value, dict):
        odd = next((name for name in value if not isinstance(name, str)), None)
        return f"the name {odd!r:.50}" if odd is not None else odd_for_json(list(value.values()))
    if isinstance(value, list):
        return next(filter(None, map(odd_for_json, value)), "")
    return "" if value is None or isinstance(value, str | bool | int | float) else f"a {type(value).__name__}"


def _array(value: Any, check: Callable[[Any], str]) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"is {kind_of(value)}, not an array of strings")
    for index, item in enumerate(value):
        try:
            check(item)
        except ValueError as error:
            raise FieldError(str(error), str(index)) from None
    return tuple(value)


def _rule(value: Any) -> str:
    found = checked.text(value)
    exit_rules.parse(found)
    return found
