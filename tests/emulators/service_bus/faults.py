"""What a test lets befall requests, and the log of what was asked."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from jobq.clock import Clock

LOG_LENGTH: Final = 100_000  # requests; some 20 MB


class Via(StrEnum):
    """The protocol of a request."""

    AMQP = "amqp"
    REST = "rest"


class Operation(StrEnum):
    """What was asked."""

    ADMIN = "admin"
    ATTACH = "attach"
    AUTHORIZE = "authorize"
    SEND = "send"
    SCHEDULE = "schedule"
    CANCEL = "cancel"
    PEEK = "peek"
    RECEIVE = "receive"
    RENEW = "renew"
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead_letter"
    OTHER = "other"


class Drop(StrEnum):
    """When a connection is broken."""

    NEVER = "never"
    BEFORE = "before"  # the request is lost
    AFTER = "after"  # the answer is lost: it was done


@dataclass
class Request:
    """One entry of the log.

    Attributes:
        via: the protocol.
        operation: what was asked.
        path: of the queue.
        at: seconds since the epoch by the service's clock.
        messages: how many messages it is about.
        status: what was answered, as of HTTP; 0 = nothing yet, or never.
    """

    via: Via
    operation: Operation
    path: str
    at: float
    messages: int = 1
    status: int = 0


@dataclass(frozen=True)
class Fault:
    """What befalls a request.

    Attributes:
        status: refuse it with this status of HTTP, or the AMQP condition that means it; 0 = carry it out.
        drop: break the connection.
        delay: real seconds before anything is done.
    """

    status: int = 0
    drop: Drop = Drop.NEVER
    delay: float = 0.0


NO_FAULT: Final = Fault()
Matches = Callable[[Request], bool]


@dataclass
class _Plan:
    fault: Fault
    matches: Matches
    left: float
    chance: float
    hits: int = 0


@dataclass
class Faults:
    """The faults that are planned. A message that is handed to an AMQP receiver is no request: drop or detach these.

    Attributes:
        seed: of those that come by chance.
    """

    seed: int = 0
    _plans: list[_Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def plan(
        self,
        fault: Fault,
        operation: Operation | None = None,
        *,
        via: Via | None = None,
        path: str | None = None,
        count: float = 1,
        chance: float = 1.0,
    ) -> None:
        """Let a fault befall the next requests that match.

        Args:
            fault: what happens.
            operation: None = any.
            via: None = both protocols.
            path: of the queue; None = any.
            count: how many requests are hit; `math.inf` = all.
            chance: of each that matches.
        """

        def matches(request: Request) -> bool:
            wanted = (operation, via, path and path.lower())
            return all(want in (None, is_) for want, is_ in zip(wanted, _features(request), strict=True))

        self._plans.append(_Plan(fault, matches, count, chance))

    def clear(self) -> None:
        """Forget all plans."""
        self._plans.clear()

    @property
    def hits(self) -> int:
        """How many requests were hit."""
        return sum(plan.hits for plan in self._plans)

    def take(self, request: Request) -> Fault:
        """Return what befalls a request."""
        for plan in self._plans:
            if plan.left > 0 and plan.matches(request) and self._random.random() < plan.chance:
                plan.left -= 1
                plan.hits += 1
                return plan.fault
        return NO_FAULT


def _features(request: Request) -> tuple[Operation, Via, str]:
    return request.operation, request.via, request.path.lower()


@dataclass
class Gate:
    """What every request of either protocol passes: the log and the faults.

    Attributes:
        clock: the service's.
        faults: what is planned.
        requests: the log of the latest requests, oldest first.
    """

    clock: Clock
    faults: Faults
    requests: deque[Request] = field(default_factory=lambda: deque(maxlen=LOG_LENGTH))

    def admit(self, via: Via, operation: Operation, path: str, messages: int = 1) -> tuple[Request, Fault]:
        """Log a request; return its entry and what befalls it."""
        request = Request(via, operation, path.strip("/"), self.clock.wall(), messages)
        self.requests.append(request)
        return request, self.faults.take(request)

    def count(self, operation: Operation | None = None, *, via: Via | None = None, status: int | None = None) -> int:
        """Return how many requests of the log are such; None = any."""
        return sum(
            operation in (None, request.operation) and via in (None, request.via) and status in (None, request.status)
            for request in self.requests
        )
