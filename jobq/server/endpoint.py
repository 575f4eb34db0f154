"""What an endpoint is: the one table from which requests are routed and the OpenAPI is made."""

import asyncio
import inspect
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from jobq.server.backend_pool import BackendPool
from jobq.server.error_responses import RequestRefused
from jobq.server.metrics import Metrics
from jobq.server.tokens import Scope, audit

QUEUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(eq=False)
class ServiceState:
    """What all requests share.

    Attributes:
        places: the queues; open while requests come.
        metrics: of this process.
        replica: names this process.
        is_stopping: no request is to wait any longer.
        openapi: the document, as JSON.
    """

    places: BackendPool
    metrics: Metrics = field(default_factory=Metrics)
    replica: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    is_stopping: bool = False
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
    _backend: Any = None

    def needs(self, scope: Scope) -> None:
        """Raise RequestRefused (403) unless the caller may do this to the queue."""
        if not self.may(scope, self.queue):
            raise RequestRefused(403, "forbidden", f"this token does not permit {scope} on queue {self.queue!r}")

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


Reply = tuple[int, Any]  # the status, and what is sent as JSON
Handler = Callable[[RequestCall], Awaitable[Reply]]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the query.

    Attributes:
        name: of it.
        schema: JSON schema.
        text: what it is for.
    """

    name: str
    schema: Mapping[str, Any]
    text: str


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method of one path.

    Attributes:
        method: of HTTP.
        path: with {variable} parts.
        scope: what a token must permit; None = the handler says it (`RequestCall.needs`).
        is_open: whether no token is needed at all.
        handler: answers.
        summary: one line.
        answers: the model of each status, beside those that every endpoint has; None = no JSON.
        body: the request's model.
        parameters: of the query, beside `queue`.
        has_queue: whether it is about a queue.
        changes: whether it changes anything, so that the audit has it.
        text: more than the summary.
    """

    method: str
    path: str
    scope: Scope | None
    handler: Handler
    summary: str
    answers: Mapping[int, type[BaseModel] | None]
    body: type[BaseModel] | None = None
    parameters: tuple[Parameter, ...] = ()
    has_queue: bool = True
    is_open: bool = False
    changes: bool = False
    text: str = ""

    @property
    def name(self) -> str:
        """What the audit and the metrics call it."""
        return f"{self.method} {self.path}"


class Endpoints(list[Endpoint]):
    """The endpoints of one part of the service, each entered by what decorates its handler.

    Args:
        prefix: of their paths.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def add(self, method: str, path: str, scope: Scope | None, **more: Any) -> Callable[[Handler], Handler]:
        """Return what enters a handler, whose docstring is summary and text; `more` has other fields of `Endpoint`."""

        def enter(handler: Handler) -> Handler:
            summary, _, text = inspect.cleandoc(handler.__doc__ or "").partition("\n\n")
            fields = {"summary": summary, "text": text.replace("\n", " "), "changes": method != "GET"}
            self.append(
                Endpoint(method=method, path=self._prefix + path, scope=scope, handler=handler, **{**fields, **more})
            )
            return handler

        return enter


LIMIT: Final = Parameter(
    name="limit", schema={"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, text="How many at most."
)
AFTER: Final = Parameter(
    name="after", schema={"type": "string", "maxLength": 200}, text="The `next` of the page before this one."
)


def whole(call: RequestCall, name: str, default: int, most: int) -> int:
    """Return a parameter that is a whole number from 1; raises RequestRefused."""
    text = call.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= most):  # noqa: PLR2004 - 64 bits
        raise RequestRefused(400, "malformed_request", f"{name} must be a whole number from 1 to {most}")
    return int(text)


def validated(model: type[BaseModel], fields: Any) -> BaseModel:
    """Return the request; raises RequestRefused which says what is wrong, and where."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise malformed(error) from None


def malformed(error: ValidationError) -> RequestRefused:
    """Return the answer to what is no such request."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return RequestRefused(400, "malformed_request", f"{where}: {first['msg']}" if where else first["msg"])
