"""The one table of endpoints, from which requests are routed and the OpenAPI is made."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from jobq.server.error_responses import RequestRefused
from jobq.server.request import RequestCall
from jobq.server.tokens import Scope

NO_NUL: Final = r"^[^\x00]*$"  # what PostgreSQL takes as text
_NUMBERS: Final = {
    "integer": re.compile(r"[0-9]{1,19}"),  # 64 bits
    "number": re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?"),
}
_KINDS: Final = {"integer": "a whole number", "number": "a number"}
QUEUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


Reply = tuple[int, Any]  # the status, and what is sent as JSON
Handler = Callable[[RequestCall], Awaitable[Reply]]


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
        """Return its value, None = there is none and no default; raises RequestRefused for what its schema forbids."""
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

    def _malformed(self, why: str) -> RequestRefused:
        return RequestRefused(400, "malformed_request", f"{self.name}: {why}")


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
        is_of_default: whether the default queue is the only one that it is about.
        id_schema: JSON schema of an {id} of the path.
        changes: whether it changes anything, so that the audit has it.
        is_large: whether its answer may have some MB: then a caller has few of them at once.
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
    is_large: bool = False
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


class Routes:
    """Finds the endpoint of a path."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._fixed: dict[str, dict[str, Endpoint]] = {}
        self._variable: list[tuple[tuple[str, ...], dict[str, Endpoint]]] = []
        for endpoint in endpoints:
            if "{" not in endpoint.path:
                self._fixed.setdefault(endpoint.path, {})[endpoint.method] = endpoint
                continue
            parts = tuple(endpoint.path.split("/"))
            methods = next((known for each, known in self._variable if each == parts), None)
            if methods is None:
                methods = {}
                self._variable.append((parts, methods))
            methods[endpoint.method] = endpoint

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        """Return the endpoint, and the variable parts of the path; raises RequestRefused."""
        variables: dict[str, str] = {}
        methods = self._fixed.get(path)
        if methods is None or method not in methods:
            given = path.split("/")
            for parts, known in self._variable:
                if len(parts) == len(given) and all(
                    part[:1] == "{" or part == word for part, word in zip(parts, given, strict=True)
                ):
                    variables = {part[1:-1]: word for part, word in zip(parts, given, strict=True) if part[:1] == "{"}
                    if methods is None or method in known:
                        methods = known
                    break
        if methods is None or any(not word for word in variables.values()):
            raise RequestRefused(404, "no_such_path", "there is nothing here; /openapi.json has what there is")
        endpoint = methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            raise RequestRefused(
                405, "no_such_method", f"not with {method[:20]!a}", headers=(("Allow", ", ".join(sorted(methods))),)
            )
        return endpoint, variables
