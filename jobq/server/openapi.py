"""The OpenAPI of the service, made from the table of its endpoints and the models of its wire."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from jobq.formats import task_ids
from jobq.server import answers
from jobq.server import schemas as wire
from jobq.server.endpoint import QUEUE, Endpoint

_REF: Final = "#/components/schemas/{model}"
_COMMON: Final = {
    400: "The request is malformed, or is refused; the message says where.",
    401: "There is no token, or it is not good.",
    403: "The token does not permit this, or not on this queue.",
    404: "There is no such queue, task, batch, lease or path.",
    405: "Not with this method.",
    408: "The body did not arrive in time.",
    409: "The lease is gone or the task is settled; or the name is held, the id is taken, the batch is sealed.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    429: "Too many requests of this caller.",
    500: "The service failed; nothing is said of whether it was done.",
    503: "The store does not answer, and nothing was changed; or the service stops.",
    504: "The store's answer was lost: it may have been done. The same request again says which.",
}

_HEADERS: Final = {
    wire.SERVICE_HEADER: "The API's version.",
    wire.CAPABILITIES_HEADER: "What this service can that others cannot: selects, or nothing.",
}
_OF_A_BODY: Final = frozenset({408, 413, 415})
_OF_A_CALLER: Final = frozenset({401, 403, 429})


def document(endpoints: Sequence[Endpoint], *, default_queue: str, needs_tokens: bool) -> dict[str, Any]:
    """Return the OpenAPI document, version 3.1."""
    models: set[type[BaseModel]] = {answers.Problem}
    for endpoint in endpoints:
        models |= {model for model in (endpoint.body, *endpoint.answers.values()) if model is not None}
    _, schemas = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template=_REF,
    )
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, default_queue, needs_tokens)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jobq",
            "version": wire.API_VERSION,
            "description": "Leases and tasks over HTTP. Every answer of the service has the header"
            f" {wire.SERVICE_HEADER}; one without it is not the service's, and says nothing.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, default_queue: str, needs_tokens: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.path.strip("/").split("/")[1] if endpoint.path.startswith("/api/") else "service"],
        "parameters": _parameters(endpoint, default_queue),
        "responses": _responses(endpoint),
    }
    text = " ".join(filter(None, [endpoint.text, f"Scope: {endpoint.scope}." if endpoint.scope else ""]))
    if text:
        found["description"] = text
    if not endpoint.is_open:
        found["security"] = [{"token": []}] if needs_tokens else [{"token": []}, {}]
    if endpoint.body is not None:
        found["requestBody"] = {"required": True, "content": _json(endpoint.body)}
    return found


def _parameters(endpoint: Endpoint, default_queue: str) -> list[dict[str, Any]]:
    parts = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    only = {"const": default_queue} if endpoint.is_of_default else {}
    schemas = {"queue": {"type": "string", "pattern": f"^{QUEUE.pattern}$"} | only, "id": endpoint.id_schema}
    schemas["name"] = {"type": "string", "pattern": f"^{task_ids.BATCH.pattern}$"}
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": schemas[name]} for name in parts
    ]
    if endpoint.has_queue and "queue" not in parts:
        text = f"The queue; {default_queue} where it is not given."
        found.append({"name": "queue", "in": "query", "schema": schemas["queue"], "description": text})
    found += [
        {"name": each.name, "in": "query", "schema": dict(each.schema), "description": each.text}
        for each in endpoint.parameters
    ]
    return found


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    statuses: dict[int, tuple[str, type[BaseModel] | None]] = {
        status: (text, answers.Problem) for status, text in _COMMON.items() if _may_be(endpoint, status)
    }
    for status, model in endpoint.answers.items():
        statuses[status] = (" ".join((model.__doc__ or "").split()) if model else "As text.", model)
    return {
        str(status): {
            "description": text,
            "headers": {name: {"schema": {"type": "string"}, "description": what} for name, what in _HEADERS.items()},
            "content": _json(model) if model is not None else {"text/plain": {"schema": {"type": "string"}}},
        }
        for status, (text, model) in sorted(statuses.items())
    }


def _may_be(endpoint: Endpoint, status: int) -> bool:
    if status in _OF_A_BODY:
        return endpoint.body is not None
    if status in _OF_A_CALLER:
        return not endpoint.is_open
    if status == 409:  # noqa: PLR2004 - as above
        return endpoint.changes
    return status != 404 or endpoint.has_queue or "{" in endpoint.path  # noqa: PLR2004 - as above


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}


def _operation_id(endpoint: Endpoint) -> str:
    words = endpoint.path.replace("{", "").replace("}", "").replace("-", "_").strip("/").split("/")
    return "_".join([endpoint.method.lower(), *words])
