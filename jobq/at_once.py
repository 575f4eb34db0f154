"""Coroutines that wait for nothing, run without an event loop: asyncio is a third of a short command's start."""

from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
_running: Final[list[bool]] = []


@runtime_checkable
class AnswersAtOnce(Protocol):
    """A backend that can be asked so."""

    def without_loop(self) -> None:
        """Answer each call before it returns, for one caller at a time; to be called first of all."""
        ...


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on this thread.

    Args:
        work: awaits only what is there at once.

    Raises:
        RuntimeError: it waits for something: a fault of ours.
    """
    _running.append(True)
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    finally:
        _running.pop()
        work.close()
    raise RuntimeError("a command that was to need no event loop waits for something")


def is_at_once() -> bool:
    """Return whether `run_at_once` is below the caller: nothing may be waited for, and nobody can cancel."""
    return bool(_running)
