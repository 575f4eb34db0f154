"""The cases of the conformance suite, one file per theme; each is a coroutine that takes a `Bench`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from jobq.testing.harness import Bench

Check = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case.

    Attributes:
        name: `theme.what_holds`.
        needs: capabilities without which it does not apply, as `jobq.testing.conformance.missing` reads them.
        injects: whether it needs `Harness.inject`.
        check: raises AssertionError when the rule is broken.
    """

    name: str
    needs: tuple[str, ...]
    injects: bool
    check: Check

    def __str__(self) -> str:
        return self.name


_registered: dict[str, Case] = {}


def case(*needs: str, injects: bool = False) -> Callable[[Check], Check]:
    """Register a coroutine function as a case."""

    def register(check: Check) -> Check:
        theme = check.__module__.rpartition(".")[2]
        name = f"{theme}.{check.__name__}"
        assert name not in _registered, f"two cases are named {name}"
        _registered[name] = Case(name=name, needs=needs, injects=injects, check=check)
        return check

    return register


def registered() -> list[Case]:
    """Return the cases of all files imported so far."""
    return list(_registered.values())
