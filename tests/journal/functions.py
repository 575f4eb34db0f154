"""Functions that the tests' workers import."""

from typing import Any


def add(left: Any, right: Any = 10) -> Any:
    return left + right


def inverse(number: float) -> float:
    return 1 / number
