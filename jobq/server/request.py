"""One request as its handler sees it, and what all requests share."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobq.pausing import Pause
from jobq.server.backend_pool import ServedPool
from jobq.server.error_responses import RequestRefused
from jobq.server.metrics import Metrics
from jobq.server.tokens import Scope, TokenRecord, audit


@dataclass(eq=False)
class ServiceState:
    """What all requests share.

    Attributes:
        places: the queues; open while requests come.
        metrics: of this process.
        replica: names this process.
        is_stopping: no request is to wait any longer.
        claiming: of the claims that wait, by their keys: set for one whose client is gone.
        openapi: the document, as JSON.
    """

    places: ServedPool
    metrics: Metrics = field(default_factory=Metrics)
    replica: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    is_stopping: bool = False
    claiming: dict[str, asyncio.Event] = field(default_factory=dict)
    openapi: bytes = b""


@dataclass(slots=True)
class RequestCall:
    """One request, with what is known of it.

    Attributes:
        service: the whole.
        queue: the queue that it is about.
        path: the variable parts of its path.
        query: its parameters.
        body: the request's model; None for endpoints without one.
        caller: the id of its token; "-" = anyone, where no tokens are needed.
        address: of the client.
        gone: set when the client has hung up, or the service stops.
        audited: what the audit is to say of it.
        size: of its body, in bytes.
        answer_size: of its answer, about, as far as that may be large.
        token: of the caller; None = none is needed.
        may: returns whether the caller may do this to a queue.
    """

    service: ServiceState
    queue: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    caller: str
    address: str
    gone: asyncio.Event
    may: Callable[[Scope, str], bool]
    audited: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    answer_size: int = 0
    token: TokenRecord | None = None
    _backend: Any = None

    def needs(self, scope: Scope) -> None:
        """Raise RequestRefused (403) unless the caller may do this to the queue."""
        if not self.may(scope, self.queue):
            raise RequestRefused(403, "forbidden", f"this token does not permit {scope} on queue {self.queue!r}")

    def mark_of(self, mark: Pause | None, queue: str) -> Pause | None:
        """Return a queue's mark of a pause as the caller may see it: who may only watch sees numbers, and no words."""
        is_told = any(self.may(scope, queue) for scope in (Scope.VIEW, Scope.LEASE, Scope.OPERATE))
        return mark if mark is None or is_told else mark.without_words()

    async def backend(self) -> Any:
        """Return the queue's backend, for as long as the request lasts; raises RequestRefused (404)."""
        if self._backend is None:
            self._backend = await self.service.places.take(self.queue)
        return self._backend

    def about(self, backend: Any, item: Any) -> "RequestCall":
        """Return the call of one of several things that this one asks for; the backend stays this one's."""
        call = RequestCall(
            self.service, self.queue, {"id": item.id}, {}, item, self.caller, self.address, self.gone, self.may
        )
        call._backend = backend
        return call

    def audit(self, did: str, status: int) -> None:
        """Write down that this was done, and how it ended."""
        audit(did, caller=self.caller, address=self.address, queue=self.queue, **self.audited, status=status)

    def end(self) -> None:
        """Let the backend go."""
        if self._backend is not None:
            self._backend = None
            self.service.places.give(self.queue)
