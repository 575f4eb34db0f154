"""Sizes of memory as people write them: `512M`, `2G`, `1.5GiB`, plain bytes; every unit is a power of 1024."""

import re
from typing import Final

_UNITS: Final = ("", "K", "M", "G", "T")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(?:([kmgt])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)
_LARGEST_BYTES: Final = 1024**5


def parse(text: str) -> int:
    """Return the bytes; a bare number counts bytes. Raises ValueError with what would be right."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; write bytes, or a number with K, M, G or T: 512M, 2G, 1.5GiB")
    exponent = _UNITS.index((found[2] or "").upper())
    size = float(found[1]) * 1024.0**exponent
    if size > _LARGEST_BYTES:
        raise ValueError(f"{text!r} is more than 1024 TiB")
    return round(size)


def show(size: int) -> str:
    """Return a short form for people, such as `512 MiB`, `1.5 GiB` or `96 bytes`."""
    exponent = 0
    while exponent < len(_UNITS) - 1 and size >= 1024 ** (exponent + 1):
        exponent += 1
    if exponent == 0:
        return f"{size} bytes"
    return f"{size / 1024**exponent:.1f}".removesuffix(".0") + f" {_UNITS[exponent]}iB"
