"""What every request over AMQP passes: the log, the faults that are planned, and whether a token allows it."""

from collections.abc import Callable

from tests.emulators.service_bus.access import Claim, Right
from tests.emulators.service_bus.errors import BrokerError, Injected, Unauthorized
from tests.emulators.service_bus.faults import Drop, Fault, Operation, Request, Via
from tests.emulators.service_bus.frames import Frames
from tests.emulators.service_bus.service import Service

Refuse = Callable[[BrokerError], None]


class Requests(Frames):
    """A connection whose requests are logged, struck and allowed.

    Args:
        service: the state behind it.

    Attributes:
        claims: what the tokens allow that were put, by their audience.
    """

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.service = service
        self.claims: dict[str, Claim] = {}

    @property
    def now(self) -> float:
        """The service's time, in seconds since the epoch."""
        return self.service.clock.wall()

    def perform(
        self, operation: Operation, path: str, act: Callable[[], object], refuse: Refuse, *, messages: int = 1
    ) -> None:
        """Carry out a request of any kind: log it, let befall it what is planned, do it or refuse it."""
        request, fault = self.service.gate.admit(Via.AMQP, operation, path, messages)
        if fault.delay:
            self.loop.call_later(fault.delay, self._carry_out, request, fault, act, refuse)
        else:
            self._carry_out(request, fault, act, refuse)

    def _carry_out(self, request: Request, fault: Fault, act: Callable[[], object], refuse: Refuse) -> None:
        if not self.is_open:
            return
        if fault.drop is Drop.BEFORE:
            self.drop()
            return
        if fault.drop is Drop.AFTER:
            self.is_open = False  # the answer is lost, too
        try:
            if fault.status:
                raise Injected(fault.status)
            act()
            request.status = 200
        except BrokerError as error:
            request.status = error.status
            refuse(error)
        if fault.drop is Drop.AFTER:
            self.drop()

    def require(self, path: str, right: Right) -> None:
        """Raise Unauthorized unless a token was put that allows this now."""
        if not any(claim.allows(path, right, self.now) for claim in self.claims.values()):
            raise Unauthorized(f"Unauthorized access. '{right}' claim(s) are required to perform this operation.")
