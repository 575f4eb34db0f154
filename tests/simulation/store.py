"""What a run does otherwise for one store: how it is made, reached and judged."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.broker import MakeBackend
from tests.simulation.loop import Machine
from tests.simulation.network import Client, NetworkLink
from tests.simulation.rules.monitor import Monitor


def _client(link: NetworkLink, _machine: Machine) -> AbstractAsyncContextManager[Any]:
    return Client(link)


def _made(_backend: Any, _monitor: Monitor, _lease: float, _chance: Random) -> None:
    """Nothing is left to do."""


@dataclass(frozen=True, kw_only=True)
class SimulatedStore:
    """One store.

    Attributes:
        make: lends what is at the far end.
        finish: gives that far end who watches it, the length of leases in seconds, and what decides the rest.
        connect: lends one process its backend over a link, on the clocks of its machine.
        monitor: looks at every change.
        grain: seconds by which a lease that is granted is shorter than the one asked for.
        without: kinds of faults that mean nothing to it.
        is_on_machine: whether all workers are on its machine, and keep leases by its clock.
    """

    make: MakeBackend
    finish: Callable[[Any, Monitor, float, Random], None] = _made
    connect: Callable[[NetworkLink, Machine], AbstractAsyncContextManager[Any]] = _client
    monitor: type[Monitor] = Monitor
    grain: float = 0.0
    without: frozenset[str] = frozenset()
    is_on_machine: bool = False


def store_of(made: SimulatedStore | MakeBackend) -> SimulatedStore:
    """Return the store of a backend that does each verb in one instant."""
    return made if isinstance(made, SimulatedStore) else SimulatedStore(make=made)
