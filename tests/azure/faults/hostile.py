"""Messages by someone who means harm, or by a program that has gone wrong, from a seed."""

import json
import random
from collections.abc import Callable
from typing import Final

from jobq.task import Task
from jobq_azure.storage.message_format import MAX_TEXT_BYTES, text_of

_GOOD: Final = Task.new(command="true").encode().decode()
_VALUES: Final[tuple[object, ...]] = (None, True, 0, -1, 1e308, [], {}, "", "\u0000", [[]], {"a": {}})


def text(seed: int) -> str:
    """Return one hostile message that the service takes and that is no task."""
    dice = random.Random(seed)
    return dice.choice(_KINDS)(dice)


def _random_bytes(dice: random.Random) -> str:
    return text_of(dice.randbytes(dice.randrange(200)))


def _random_text(dice: random.Random) -> str:
    return "".join(chr(dice.randrange(0x20, 0xD800)) for _ in range(dice.randrange(1, 100)))


def _truncated(dice: random.Random) -> str:
    return _GOOD[: dice.randrange(1, len(_GOOD) - 1)]


def _deep(dice: random.Random) -> str:
    depth = dice.choice([33, 1000, 10_000])
    return dice.choice(["[" * depth, "[" * depth + "]" * depth, '{"a":' * depth])


def _wrong_type(dice: random.Random) -> str:
    fields = json.loads(_GOOD)
    fields[dice.choice(["id", "command", "counters", "budgets", "epoch"])] = dice.choice([[], {"a": 1}, -5, 1.5, True])
    return json.dumps(fields)


def _version(dice: random.Random) -> str:
    return json.dumps(json.loads(_GOOD) | {"version": dice.choice([3, 99, -1, 2**70, "2", None, True, 2.0])})


def _numbers(dice: random.Random) -> str:
    return dice.choice(["NaN", "[Infinity]", "-Infinity", "9" * 5000, "1e999999", '{"version":NaN}'])


def _nul(_dice: random.Random) -> str:
    return _GOOD.replace("true", "tr\\u0000ue")


def _twice(_dice: random.Random) -> str:
    return _GOOD.replace('"version":2', '"version":2,"version":2')


def _unknown_field(dice: random.Random) -> str:
    return json.dumps(json.loads(_GOOD) | {f"x{dice.random()}": dice.choice(_VALUES)})


def _edge(dice: random.Random) -> str:
    return "-" * (MAX_TEXT_BYTES - dice.randrange(3))


def _like_ours(dice: random.Random) -> str:
    line = dice.choice(["#jobq {", "#jobq []", '#jobq {"checkpoint":1}', "#jobq", '#jobq {"dead":[]}'])
    return line + dice.choice(["\n", "\n{}", "", "\n\n\n"])


def _surrogate(_dice: random.Random) -> str:
    return _GOOD.replace("true", "\\ud800")


def _older(dice: random.Random) -> str:
    return json.dumps({"version": dice.choice([0, 1]), "id": dice.choice(_VALUES), "kwargs": dice.choice(_VALUES)})


_KINDS: Final[tuple[Callable[[random.Random], str], ...]] = (
    _random_bytes,
    _random_text,
    _truncated,
    _deep,
    _wrong_type,
    _version,
    _numbers,
    _nul,
    _twice,
    _unknown_field,
    _edge,
    _like_ours,
    _surrogate,
    _older,
)
