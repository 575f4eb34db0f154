"""What an endpoint is: the one table from which requests are routed and the OpenAPI is made."""

import asyncio
import inspect
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from jobq.server.backend_pool import Places
from jobq.server.error_responses import Refused
from jobq.server.metrics import Metrics
from jobq.server.tokens import Scope, audit

NO_NUL: Final = r"^[^\x00]*$"  # what PostgreSQL takes as text
_NUMBERS: Final = {
    "integer": re.compile(r"[0-9]{1,19}"),  # 64 bits
    "number": re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?"),
}
_KINDS: Final = {"integer": "a whole number", "number": "a number"}
QUEUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(eq=False)
class Service:
    """What all requests share.

    Attributes:
        places: the queues; open while requests come.
        metrics: of this process.
        replica: names this process.
        is_stopping: no request is to wait any longer.
        openapi: the document, as JSON.
    """

    places: Places
    metrics: Metrics = field(default_factory=Metrics)
    replica: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    is_stopping: bool = False
    openapi: bytes = b""


@dataclass(slots=True)
class Call:
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

    service: Service
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
        """Raise Refused (403) unless the caller may do this to the queue."""
        if not self.may(scope, self.queue):
            raise Refused(403, "forbidden", f"this token does not permit {scope} on queue {self.queue!r}")

    async def backend(self) -> Any:
        """Return the queue's backend, for as long as the request lasts; raises Refused (404)."""
        if self._backend is None:
            self._backend = await self.service.places.take(self.queue)
        return self._backend

    def about(self, backend: Any, item: Any) -> "Call":
        """Return the call of one of several things that this one asks for; the backend stays this one's."""
        call = Call(self.service, self.queue, {"id": item.id}, {}, item, self.caller, self.address, self.gone, self.may)
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
Handler = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of the query.

    Attributes:
        name: of it.
        schema: JSON schema, of which `read` knows what is used here: integers and numbers with their bounds and
            default; texts with enum, pattern and maxLength.
        text: what it is for.
    """

    name: str
    schema: Mapping[str, Any]
    text: str

    def read(self, query: Mapping[str, str]) -> Any:
        """Return its value, None = it is not given and has no default; raises Refused for what its schema forbids."""
        given = query.get(self.name)
        if given is None:
            return self.schema.get("default")
        kind = self.schema["type"]
        if kind == "string":
            return self._checked(given)
        if not _NUMBERS[kind].fullmatch(given):
            raise self._malformed(f"must be {_KINDS[kind]}")
        value = int(given) if kind == "integer" else float(given)
        least, most = self.schema["minimum"], self.schema["maximum"]
        if not least <= value <= most:
            raise self._malformed(f"must be {_KINDS[kind]} from {least} to {most}")
        return value

    def _checked(self, given: str) -> str:
        if len(given) > self.schema.get("maxLength", len(given)):
            raise self._malformed(f"at most {self.schema['maxLength']} characters")
        if given not in self.schema.get("enum", (given,)):
            raise self._malformed(f"must be one of {', '.join(self.schema['enum'])}")
        if "pattern" in self.schema and not re.fullmatch(self.schema["pattern"], given):  # no "$" before a line's end
            raise self._malformed("is not of the form that is described")
        return given

    def _malformed(self, why: str) -> Refused:
        return Refused(400, "malformed_request", f"{self.name}: {why}")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method of one path.

    Attributes:
        method: of HTTP.
        path: with {variable} parts.
        scope: what a token must permit; None = the handler says it (`Call.needs`).
        is_open: whether no token is needed at all.
        handler: answers.
        summary: one line.
        answers: the model of each status, beside those that every endpoint has; None = no JSON.
        body: the request's model.
        parameters: of the query, beside `queue`.
        has_queue: whether it is about a queue.
        is_of_default: whether the default queue is the only one that it is about.
        id_schema: JSON schema of an {id} of the path.
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
    is_of_default: bool = False
    id_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string", "minLength": 1})
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
    name="after",
    schema={"type": "string", "maxLength": 200, "pattern": NO_NUL},
    text="The `next` of the page before this one.",
)


def validated(model: type[BaseModel], fields: Any) -> BaseModel:
    """Return the request; raises Refused which says what is wrong, and where."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise malformed(error) from None


def malformed(error: ValidationError) -> Refused:
    """Return the answer to what is no such request."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return Refused(400, "malformed_request", f"{where}: {first['msg']}" if where else first["msg"])
