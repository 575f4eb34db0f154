"""Each answer of the service, or its absence, by each request of our own; and each is sent once (S4, S5, S8)."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from jobq.errors import AccessDenied, BackendUnavailable, JobqError, LockLost, MalformedTask, QueueNotFound
from jobq_azure.common.errors import NoAnswer, ServiceFailed, Unreadable
from jobq_azure.storage import account as connection
from jobq_azure.storage.account import Account
from jobq_azure.storage.queue_client import StorageQueueClient
from tests.azure.emulator import ACCOUNT, connection_string
from tests.azure.wire.raw_service import DONE, RECEIPT, Cut, Late, RawService, Reply, answer, messages, refusal, serving

pytestmark = pytest.mark.check

VERBS: Final[dict[str, Callable[[StorageQueueClient], Awaitable[object]]]] = {
    "put": lambda wire: wire.put("text"),
    "get": lambda wire: wire.get(1, 30),
    "update": lambda wire: wire.update("the-id", RECEIPT, 30),
    "delete": lambda wire: wire.delete("the-id", RECEIPT),
    "count": lambda wire: wire.count(),
}
ON_RECEIPT: Final = ("update", "delete")
each_verb = pytest.mark.parametrize("verb", VERBS)


@asynccontextmanager
async def asking(*answers: Reply) -> AsyncIterator[tuple[RawService, StorageQueueClient]]:
    async with serving(*answers) as service, Account(ACCOUNT, connection_string(service.port), "") as account:
        yield service, account.wire("queue")


async def refused(verb: str, *answers: Reply) -> Exception:
    """Return what a verb raises; the request was sent once, and at once."""
    async with asking(*answers) as (service, wire):
        began = time.monotonic()
        with pytest.raises((JobqError, NoAnswer)) as caught:
            await VERBS[verb](wire)
        assert time.monotonic() - began < 10, "it has waited"
        assert len(service.asked) == 1, "somebody has repeated it"
        assert RECEIPT not in str(caught.value)
        return caught.value


@each_verb
@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "QueueNotFound", QueueNotFound),
        (404, "", QueueNotFound),
        (404, "MessageNotFound", LockLost),
        (400, "PopReceiptMismatch", LockLost),
        (401, "NoAuthenticationInformation", AccessDenied),
        (403, "AuthenticationFailed", AccessDenied),
        (403, "AuthorizationFailure", AccessDenied),
        (403, "AuthorizationPermissionMismatch", AccessDenied),
        (409, "QueueBeingDeleted", BackendUnavailable),
        (413, "RequestBodyTooLarge", MalformedTask),
        (400, "RequestBodyTooLarge", MalformedTask),
        (429, "", BackendUnavailable),
        (503, "ServerBusy", BackendUnavailable),
        (500, "OperationTimedOut", ServiceFailed),
        (500, "InternalError", ServiceFailed),
        (504, "", ServiceFailed),
        (400, "InvalidQueryParameterValue", JobqError),
        (412, "ConditionNotMet", JobqError),
    ],
)
async def test_what_a_refusal_means(verb: str, status: int, code: str, expected: type[Exception]) -> None:
    error = await refused(verb, refusal(status, code))
    assert isinstance(error, expected)
    if expected is not LockLost:
        assert not isinstance(error, LockLost), "a lease is given up that nobody has taken (rule 3)"
    if code:
        assert code in str(error) or expected in (QueueNotFound, MalformedTask)


@each_verb
async def test_the_code_is_read_from_the_body_where_no_header_has_it(verb: str) -> None:
    body = b"<?xml version='1.0'?><Error><Code>MessageNotFound</Code><Message>No.</Message></Error>"
    assert isinstance(await refused(verb, answer(404, body, Content_Type="application/xml")), LockLost)


@each_verb
@pytest.mark.parametrize(("status", "code"), [(429, ""), (503, "ServerBusy")])
async def test_retry_after_is_not_slept_through(verb: str, status: int, code: str) -> None:
    """Whoever asks decides when to ask again, by the lease; a client below that waits would outlast it (rule 4)."""
    assert isinstance(await refused(verb, refusal(status, code, Retry_After="60")), BackendUnavailable)


@each_verb
async def test_no_redirect_is_followed(verb: str) -> None:
    async with serving(DONE[verb]) as elsewhere:
        where = f"http://127.0.0.1:{elsewhere.port}/"
        error = await refused(verb, answer(307, Location=where))
        assert not isinstance(error, LockLost)
        assert elsewhere.asked == []


@each_verb
@pytest.mark.parametrize("status", [200, 201, 204, 401, 404, 409, 503])
async def test_an_answer_that_is_not_the_services_says_nothing(verb: str, status: int) -> None:
    error = await refused(verb, answer(status, b"" if status == 204 else b"<html/>", is_theirs=False))
    assert isinstance(error, NoAnswer)


@each_verb
@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_another_success_than_the_documented_one_is_none(verb: str, status: int) -> None:
    if DONE[verb].startswith(f"HTTP/1.1 {status} ".encode()):
        return
    assert isinstance(await refused(verb, answer(status)), (NoAnswer, JobqError))


@each_verb
@pytest.mark.parametrize(
    "broken",
    [
        Cut(b""),
        Cut(b"HTTP/1.1 20"),
        Cut(b"HTTP/1.1 200 OK\r\nx-ms-request-id: 1\r\n"),
        Cut(answer(200, b"<Queue", length=1000)),
        Cut(answer(201, b"<Queue", length=1000)),
        Cut(answer(503, b"<Err", length=1000)),
        Cut(answer(404, b"<Err", length=1000, x_ms_error_code="MessageNotFound")),
        Cut(b"HTTP/1.1 200 OK\r\nx-ms-request-id: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n<Queu"),
        Cut(b"HTTP/1.1 200 OK\r\nx-ms-request-id: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        Cut(b"\x00\xff\xfe garbage \r\n\r\n"),
        Cut(b"HTTP/1.1 abc OK\r\n\r\n"),
        Cut(b"HTTP/1.1 204 No\r\nx-ms-request-id: " + b"1" * 100_000 + b"\r\n\r\n"),
    ],
    ids=range(12),
)
async def test_an_answer_that_breaks_off_is_none(verb: str, broken: Cut) -> None:
    """S5: nobody knows whether it took effect, and so it is said; not even a status that has arrived is believed."""
    assert isinstance(await refused(verb, broken), NoAnswer)


@each_verb
async def test_an_answer_that_never_comes(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_ANSWER_SECONDS", 0.3)
    assert isinstance(await refused(verb, None), NoAnswer)


@each_verb
async def test_an_answer_that_comes_late_still_counts(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as something comes; the lease was counted from before it was asked for."""
    monkeypatch.setattr(connection, "_ANSWER_SECONDS", 1.6)
    async with asking(Late(DONE[verb], 1.0)) as (service, wire):
        await VERBS[verb](wire)
        assert len(service.asked) == 1


@each_verb
async def test_an_answer_that_drips_is_none(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_REQUEST_SECONDS", 0.3)
    assert isinstance(await refused(verb, Late(DONE[verb], 0.2)), NoAnswer)


@each_verb
async def test_who_gives_up_is_heard_at_once_and_others_go_on(verb: str) -> None:
    """The connection of a request that was given up serves no other: its answer would be taken for theirs (S11)."""
    async with asking(Late(refusal(404, "MessageNotFound"), 0.3), DONE[verb]) as (service, wire):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await VERBS[verb](wire)
        await VERBS[verb](wire)
        assert [asked.connection for asked in service.asked] == [1, 2]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<html><body>Sign in<br></body></html>",
        b"<?xml version='1.0'?><QueueMessagesList>",
        b"<QueueMessagesList><QueueMessage/></QueueMessagesList>",
        messages("x", receipt=""),
        messages("x").replace(b"the-id", b""),
        messages("\ufffe"),
        messages("x").replace(b">x<", b">\xff<"),
        messages("x").replace(b">x<", b">\x00<"),
        messages("&undefined;"),
        messages("x").replace(b"Fri, 20 Nov 2026 10:00:00 GMT", b"yesterday"),
        messages("x", "y")[:-40],
    ],
    ids=range(13),
)
@pytest.mark.parametrize(("verb", "status"), [("put", 201), ("get", 200)])
async def test_a_body_that_is_garbage_is_no_answer(verb: str, status: int, body: bytes) -> None:
    if verb == "put" and (b">x<" in body or b"yesterday" in body) and b"PopReceipt" in body and b"the-id" in body:
        return  # what a put does not look at
    error = await refused(verb, answer(status, body, Content_Type="application/xml"))
    assert isinstance(error, Unreadable)


async def test_a_success_without_a_new_receipt_is_none() -> None:
    """Without it the lease could be neither kept nor settled."""
    assert isinstance(await refused("update", answer(204)), Unreadable)


async def test_no_messages() -> None:
    for body in (b"<QueueMessagesList />", b"\xef\xbb\xbf<?xml version='1.0'?><QueueMessagesList></QueueMessagesList>"):
        async with asking(answer(200, body, Content_Type="application/xml")) as (_, wire):
            assert await wire.get(32, 30) == []


@pytest.mark.parametrize(
    "told", [{}, {"x_ms_approximate_messages_count": ""}, {"x_ms_approximate_messages_count": "-1"}]
)
async def test_a_count_that_is_not_told_is_not_nought(told: dict[str, str]) -> None:
    """A purge sweeps the payloads of a queue that is empty."""
    more: Any = told
    assert isinstance(await refused("count", answer(200, **more)), Unreadable)
