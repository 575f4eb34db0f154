"""Functions that the tests' workers import."""

from typing import Any


def add(left: Any, right: Any = 10) -> Any:
    return left + right


def odd(größe: int, *, text: str = "", **more: Any) -> int:  # noqa: PLC2401 - as users write
    return größe + len(text) + len(more)


def inverse(number: float) -> float:
    return 1 / number
