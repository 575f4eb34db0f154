"""JSON for data from strangers: what Python's decoder lets pass is refused here (rules.md 3, A3).

Refused: duplicate keys, NaN and infinities, numbers beyond a float, depth beyond a limit, bytes that are not UTF-8,
lone surrogates (they could not be written again).

The limits of depth compose, so that what one reader lets in no later one refuses:

    a result                24  `jobq.run.attempt.result`, before it is settled
    a task's kwargs         31  `Task.new`: they stand within the task
    a task                  32  `MAX_DEPTH`, in a queue and in a file of tasks
    a request over HTTP     34  `jobq.server.schemas`: {"tasks": [...]} stands around a task
"""

import json
import math
import re
from typing import Any, Final, NoReturn

from jobq.errors import MalformedTask

MAX_DEPTH: Final = 32
_MAX_NUMBER_CHARACTERS: Final = 400  # more digits than any float or sane integer has
MAX_KEYS: Final = 64 * 1024  # of one object: more than anything of ours has
_TOKENS: Final = 3  # for each value: itself, a key, a comma; strings alone, without a comma, are no JSON
_CONTAINER: Final = 5  # values: what an object or an array takes, in time and memory, beside a number
# A string without an end matches to the end of the text, so that nothing is ever tried again from within it.
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_STRING_OR_BRACKET: Final = re.compile(_STRING + r"|[\[\]{}]", re.DOTALL)
_STRING_COMMA_OR_OPENING: Final = re.compile(_STRING + r"|[\[{,]", re.DOTALL)


def loads(data: bytes, max_depth: int = MAX_DEPTH) -> Any:
    """Return the value in `data`, nested at most so deep.

    Raises:
        MalformedTask: says what is wrong, and at which byte or key.
    """
    return _loads(data, max_depth, _DECODER)


def loads_as_written(data: bytes) -> Any:
    """As `loads`, where each number is the text that stands there, so that 1e-5 stays 1e-5."""
    return _loads(data, MAX_DEPTH, _WRITTEN_DECODER)


def _loads(data: bytes, max_depth: int, decoder: json.JSONDecoder) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedTask("not UTF-8", f"byte {error.start}") from None
    _check_depth(text, max_depth)
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedTask(f"not JSON: {error.msg}", f"character {error.pos}") from None
    if "\\u" in text:  # only an escape can bring a surrogate past the UTF-8 decoder
        _check_surrogates(value)
    return value


def dumps(value: Any) -> bytes:
    """Return `value` as compact UTF-8 JSON; raises MalformedTask for what JSON cannot hold."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedTask(f"cannot be written as JSON: {error}") from None


def loads_leniently(text: str, max_depth: int) -> Any:
    """Return the value in a text that somebody wrote for people as much as for programs.

    NaN and infinities become the strings that Python writes for them, lone surrogates question marks; all else is as
    in `loads`.

    Raises:
        MalformedTask: as `loads`.
    """
    _check_depth(text, max_depth)
    try:
        value = _LENIENT_DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedTask(f"not JSON: {error.msg}", f"character {error.pos}") from None
    if "\\u" in text:
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def most_values(data: bytes) -> int:
    """Return a bound from above on what `count_values` finds, which costs little: those in strings count too."""
    return data.count(b",") + _CONTAINER * (data.count(b"[") + data.count(b"{"))


def count_values(data: bytes, *, few: int, most: int) -> int:
    """Return how many values JSON holds, an object or an array counting as five; about, where they are few.

    They cost time and memory, not their bytes: a hundred bytes or more for each two that were sent.

    Args:
        data: JSON, perhaps.
        few: so many are not counted to the last.
        most: what holds more counts as one more than that, and so does what takes long to read for other reasons.
    """
    # As with depth: what holds fewer commas has certainly fewer values; else those in strings are not to be counted.
    about = most_values(data)
    if about <= few:
        return about
    count = 0
    for tokens, token in enumerate(_STRING_COMMA_OR_OPENING.finditer(data.decode("utf-8", "replace"))):
        count += {",": 1, "[": _CONTAINER, "{": _CONTAINER}.get(token[0], 0)
        if count > most or tokens > _TOKENS * most:
            return most + 1
    return count


def _check_depth(text: str, max_depth: int) -> None:
    # Counting is cheap and bounds the depth from above; only a suspicious text is scanned with its strings skipped.
    if text.count("[") + text.count("{") <= max_depth:
        return
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > max_depth:
                raise MalformedTask(f"nested more than {max_depth} deep", f"character {token.start()}")
        elif token[0] in "]}":
            depth -= 1


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise MalformedTask(f"an object has {len(pairs)} keys, at most {MAX_KEYS} are read")
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise MalformedTask("key stands twice", _shown(key))
            seen.add(key)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedTask(f"{name} is not a JSON number")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_NUMBER_CHARACTERS:
        raise MalformedTask(f"number with {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise MalformedTask(f"number {_shown(digits)} is too large")
    return value


def _float_or_name(digits: str) -> float | str:
    value = float(digits)
    return value if math.isfinite(value) else json.dumps(value)


def _check_surrogates(value: Any) -> None:
    for text in _strings(value):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise MalformedTask("lone surrogate, which UTF-8 cannot hold", _shown(text))


def _strings(value: Any) -> list[str]:
    found: list[str] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            found.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return found


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")  # noqa: PLR2004 - a name's worth


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique_object, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float
)
_WRITTEN_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique_object, parse_constant=_refuse_constant, parse_int=str, parse_float=str
)
_LENIENT_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique_object, parse_constant=str, parse_int=_integer, parse_float=_float_or_name
)
