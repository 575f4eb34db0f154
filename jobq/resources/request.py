"""What a task asks of a machine: processors and GPUs in thousandths, memory in bytes, and tags that a worker must have.

A GPU is the task's alone, so there are whole ones only.
Memory is rounded up to a sixteenth of its power of two, by 6.25 % at most: what tasks ask for stays a few shapes.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jobq.formats import sizes
from jobq.formats.checked import Checked, FieldError, field, kind_of

UNIT: Final = 1000  # thousandths of one processor or GPU
_MOST: Final = 65_536
_MOST_NEEDS: Final = 8
TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NUMBER: Final = re.compile(r"\d{1,6}(\.\d{1,3})?|\.\d{1,3}", re.ASCII)
_LEAST_MEMORY_BYTES: Final = 1024 * 1024  # as of --memory-limit: less is a unit left out
_MOST_MEMORY_BYTES: Final = 1024**5


def cpus(value: Any) -> int:
    """Processors, in thousandths."""
    return _thousandths(value)


def gpus(value: Any) -> int:
    """GPUs, in thousandths as processors are."""
    found = _thousandths(value)
    if found % UNIT:
        raise ValueError(f"{shown(found)} is no whole number of GPUs")
    return found


def memory(value: Any) -> int:
    """Bytes, rounded up."""
    if type(value) is not int or not _LEAST_MEMORY_BYTES <= value <= _MOST_MEMORY_BYTES:
        raise ValueError(f"{value!r:.50} is no number of bytes of 1 MiB or more")
    step = max(1, 1 << (value.bit_length() - 5))
    return -(-value // step) * step


class Resources(Checked):
    """What a task asks for; None = nothing of it.

    Attributes:
        cpus: processors, in thousandths.
        gpus: whole GPUs, in thousandths.
        mem: bytes of memory, which become the limit of its attempts.
    """

    cpus: int | None = field(cpus)
    gpus: int | None = field(gpus)
    mem: int | None = field(memory)

    def _check(self) -> None:
        if self.cpus is None and self.gpus is None and self.mem is None:
            raise FieldError("asks for nothing; it has cpus, gpus or mem")


def needs(value: Any) -> tuple[str, ...]:
    """Tags; their order says nothing."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"is {kind_of(value)}, not an array of tags")
    found = tuple(sorted({tag(each) for each in value}))
    if not 0 < len(found) <= _MOST_NEEDS:
        raise ValueError(f"has {len(found)} tags, 1 to {_MOST_NEEDS} are taken")
    return found


def tag(value: Any) -> str:
    """A name that a worker goes by."""
    if not isinstance(value, str) or not TAG.fullmatch(value):
        raise ValueError(f"{value!r:.80} is no tag: 1 to 63 letters, digits or ._- that begin with a letter or digit")
    return value


def from_people(given: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields of `Resources` from numbers and sizes as people give them, such as 0.25 and `12G`.

    Raises:
        FieldError: one is none.
    """
    found: dict[str, int] = {}
    for name, value in given.items():
        try:
            found[name] = _bytes(value) if name == "mem" else count(value)
        except ValueError as error:
            raise FieldError(str(error), name) from None
    return found


def count(value: Any) -> int:
    """Return a number of processors or GPUs, as people give it, in thousandths; raises ValueError."""
    text = f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    if isinstance(value, bool) or not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{value!r:.50} is no number above 0, such as 4 or 0.25 (thousandths at the finest)")
    whole, _, part = text.strip().partition(".")
    found = int(whole or 0) * UNIT + int(part.ljust(3, "0") or 0)
    if not found:
        raise ValueError(f"{value!r:.50} is no number above 0")
    return found


def shown(thousandths: int) -> str:
    """Return a number for people, such as `4` or `0.25`."""
    return f"{thousandths / UNIT:.3f}".rstrip("0").rstrip(".")


def described(resources: Resources | None, tags: Iterable[str] | None) -> str:
    """Return what a task asks for, in words, such as `cpus=4 gpus=1 mem=12 GiB needs a100, eu`."""
    parts = []
    if resources is not None:
        parts += [f"{name}={shown(value)}" for name in ("cpus", "gpus") if (value := getattr(resources, name))]
        parts += [f"mem={sizes.show(resources.mem)}"] if resources.mem else []
    if tags:
        parts.append(f"needs {', '.join(tags)}")
    return " ".join(parts)


def _thousandths(value: Any) -> int:
    if type(value) is not int or not 0 < value <= _MOST * UNIT:
        raise ValueError(f"{value!r:.50} is no number of thousandths from 1 to {_MOST * UNIT}")
    return value


def _bytes(value: Any) -> int:
    return sizes.parse(value) if isinstance(value, str) else int(value) if isinstance(value, int) else memory(value)
