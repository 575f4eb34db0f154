"""The REST data plane: what HTTP routes and headers mean, and what each refusal answers.

Source: learn.microsoft.com/rest/api/servicebus. The admin API is in `admin.py`.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Final

from aiohttp import web

from tests.emulators.service_bus import admin, rest_wire
from tests.emulators.service_bus.access import Right
from tests.emulators.service_bus.errors import (
    BrokerError,
    EntityMissing,
    Injected,
    Invalid,
    LockLost,
    TooLarge,
)
from tests.emulators.service_bus.faults import Drop, Operation, Request, Via
from tests.emulators.service_bus.fidelity import Fidelity
from tests.emulators.service_bus.message import Message
from tests.emulators.service_bus.queue import Queue
from tests.emulators.service_bus.service import Service, until

_LONGEST_BODY: Final = 128 * 1024 * 1024  # the queue's own limit answers long before
_DEFAULT_WAIT: Final = 60.0  # seconds of a receive that names none
Handler = Callable[[web.Request, Request], Awaitable[web.Response]]


def application(service: Service) -> web.Application:
    """Return the HTTP application, data plane and admin API."""
    app = web.Application(client_max_size=_LONGEST_BODY)
    app.on_response_prepare.append(partial(_sign, service))
    rest = _Rest(service)
    lock = r"/{path:.+}/messages/{name}/{lock}"
    head = r"/{path:.+}/messages/head"
    for method, route, operation, right, handler in (
        ("POST", head, Operation.RECEIVE, Right.LISTEN, rest.peek_lock),
        ("DELETE", head, Operation.RECEIVE, Right.LISTEN, rest.take),
        ("DELETE", lock, Operation.COMPLETE, Right.LISTEN, rest.complete),
        ("PUT", lock, Operation.ABANDON, Right.LISTEN, rest.unlock),
        ("POST", lock, Operation.RENEW, Right.LISTEN, rest.renew),
        ("POST", r"/{path:.+}/messages", Operation.SEND, Right.SEND, rest.send),
    ):
        app.router.add_route(method, route, _guarded(service, operation, right, handler))
    manager = admin.Admin(service)
    for method, administer in (("GET", manager.get), ("PUT", manager.put), ("DELETE", manager.delete)):
        app.router.add_route(method, r"/{path:.+}", _guarded(service, Operation.ADMIN, Right.MANAGE, administer))
    return app


async def _sign(service: Service, _: web.Request, answer: web.StreamResponse) -> None:
    """Give an answer what every answer of the service has: its own time, to the second."""
    answer.headers["Date"] = rest_wire.http_date(service.clock.wall())


def _guarded(
    service: Service, operation: Operation, right: Right, handler: Handler
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler before which requests are logged, struck by faults, authorised and charged."""

    async def guarded(asked: web.Request) -> web.Response:
        path = asked.match_info["path"]
        request, fault = service.gate.admit(Via.REST, operation, path)
        await asyncio.sleep(fault.delay)
        if fault.drop is Drop.BEFORE:
            return _dropped(asked)
        try:
            if fault.status:
                raise Injected(fault.status)
            claim = service.access.verify(asked.headers.get("Authorization", ""))
            if not claim.allows(path, right, service.clock.wall()):
                raise rest_wire.Denied(right)
            answer = await handler(asked, request)
        except BrokerError as error:
            answer = rest_wire.refusal(_status(error, service.broker.fidelity), str(error))
        request.status = answer.status
        return _dropped(asked) if fault.drop is Drop.AFTER else answer

    return guarded


def _status(error: BrokerError, fidelity: Fidelity) -> int:
    """Return the status of HTTP for an error."""
    match error:
        case LockLost():
            return fidelity.rest_lost_lock_status
        case EntityMissing():
            return fidelity.rest_missing_entity_status
        case TooLarge():
            return fidelity.rest_too_large_status
        case _:
            return error.status


def _dropped(asked: web.Request) -> web.Response:
    if asked.transport is not None:
        asked.transport.abort()
    return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR)  # goes nowhere


class _Rest:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def send(self, asked: web.Request, request: Request) -> web.Response:
        """Take one message, or a batch of JSON."""
        contents = rest_wire.read_contents(asked.headers, await asked.read())
        request.messages = len(contents)
        self._queue(asked).send(contents)
        return web.Response(status=HTTPStatus.CREATED)

    async def peek_lock(self, asked: web.Request, _: Request) -> web.Response:
        """Lock the next message; wait for one as long as `timeout` says."""
        message = await self._receive(asked, destructive=False)
        if message is None:
            return web.Response(status=HTTPStatus.NO_CONTENT)
        return self._answer(asked, message, HTTPStatus.CREATED)

    async def take(self, asked: web.Request, _: Request) -> web.Response:
        """Take the next message for good."""
        message = await self._receive(asked, destructive=True)
        if message is None:
            return web.Response(status=HTTPStatus.NO_CONTENT)
        return self._answer(asked, message, HTTPStatus.OK)

    async def complete(self, asked: web.Request, _: Request) -> web.Response:
        """Remove a locked message."""
        queue, lock = self._held(asked)
        queue.complete(lock)
        return web.Response()

    async def unlock(self, asked: web.Request, _: Request) -> web.Response:
        """Give a locked message back."""
        queue, lock = self._held(asked)
        queue.abandon(lock)
        return web.Response()

    async def renew(self, asked: web.Request, _: Request) -> web.Response:
        """Extend a lock; whether the answer says until when is contested."""
        queue, lock = self._held(asked)
        until_ = queue.renew(lock)
        if not self._service.broker.fidelity.rest_renew_returns_properties:
            return web.Response()
        properties = {"LockToken": str(lock), "LockedUntilUtc": rest_wire.http_date(until_)}
        return web.Response(headers={"BrokerProperties": json.dumps(properties)})

    def _queue(self, asked: web.Request) -> Queue:
        return self._service.broker.queue(asked.match_info["path"])

    def _held(self, asked: web.Request) -> tuple[Queue, uuid.UUID]:
        queue = self._queue(asked)
        try:
            lock = uuid.UUID(asked.match_info["lock"])
        except ValueError:
            raise LockLost from None
        queue.held(lock, asked.match_info["name"])
        return queue, lock

    async def _receive(self, asked: web.Request, *, destructive: bool) -> Message | None:
        queue, clock = self._queue(asked), self._service.clock
        try:
            deadline = clock.boottime() + float(asked.query.get("timeout", _DEFAULT_WAIT))
        except ValueError:
            raise Invalid("The query parameter timeout is no number of seconds.") from None
        came = asyncio.Event()
        queue.listeners.add(came.set)
        try:
            while True:
                came.clear()
                message = queue.receive(destructive=destructive)
                if message is not None or clock.boottime() >= deadline:
                    return message
                await until(came, clock, deadline)
        finally:
            queue.listeners.discard(came.set)

    def _answer(self, asked: web.Request, message: Message, status: HTTPStatus) -> web.Response:
        first = self._service.broker.fidelity.rest_first_delivery_count
        headers = rest_wire.headers_of(message, first)
        if message.lock is not None:
            url = f"{asked.scheme}://{asked.host}/{asked.match_info['path']}"
            headers["Location"] = f"{url}/messages/{message.number}/{message.lock}"
        return web.Response(status=status, headers=headers, body=message.content.body)
