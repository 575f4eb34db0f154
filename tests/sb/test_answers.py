"""Which answers are taken for the service's, without any header of which nobody knows that it is always there."""

from collections.abc import Mapping

import pytest

from jobq.errors import AccessDenied, BackendUnavailable, LockLost, MalformedTask, QueueNotFound
from jobq_azure.common.errors import NoAnswer
from jobq_azure.service_bus.responses import Response, check_lock, check_received, check_sent

_XML = "application/xml; charset=utf-8"
_PAGE = b"<!DOCTYPE html><html><body>Please sign in</body></html>"


def _error(status: int, detail: str = "TrackingId:16ed6fad") -> bytes:
    """As it was captured from the service: with no XML declaration, and TrackingId in the detail."""
    return f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>".encode()


def _answer(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, headers or {}, body, 0.0)


@pytest.mark.parametrize("kind", ["", _XML, "application/atom+xml;type=entry;charset=utf-8"])
def test_what_the_reference_shows_is_done(kind: str) -> None:
    told = {"content-type": kind} if kind else {}
    check_lock(_answer(200, headers=told), "q")
    check_sent(_answer(201, headers=told), "q")


@pytest.mark.parametrize(
    ("status", "body"),
    [(204, b""), (202, b""), (201, b""), (200, _PAGE), (200, b"OK"), (200, b'{"ok": true}'), (307, b""), (502, b"")],
)
def test_what_the_reference_does_not_show_is_no_renewal(status: int, body: bytes) -> None:
    with pytest.raises(NoAnswer):
        check_lock(_answer(status, body), "q")


@pytest.mark.parametrize("status", [404, 409, 410])
def test_a_lock_is_gone_whoever_says_it_unless_on_a_page(status: int) -> None:
    # P1: the other way round a lost lock might be overlooked, and its task run beside the next.
    for body in (b"", _error(status), b'{"error": "gone"}'):
        with pytest.raises(LockLost):
            check_lock(_answer(status, body), "q")
    with pytest.raises(NoAnswer):
        check_lock(_answer(status, _PAGE), "q")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, AccessDenied),
        (404, QueueNotFound),
        (410, QueueNotFound),
        (413, MalformedTask),
        (429, BackendUnavailable),
        (503, BackendUnavailable),
    ],
)
def test_not_sent_needs_the_services_own_words(status: int, error: type[Exception]) -> None:
    # S8: a gateway's 503 says nothing of what the service has done.
    with pytest.raises(error):
        check_sent(_answer(status, _error(status), {"content-type": _XML}), "q")
    for body in (b"", _PAGE, b"Service Unavailable", b"<Error>none of the service's</Error>"):
        with pytest.raises(NoAnswer):
            check_sent(_answer(status, body), "q")


def test_a_quota_and_a_size_are_told_apart_from_rights() -> None:
    with pytest.raises(BackendUnavailable, match="full"):
        check_sent(_answer(403, _error(403, "The maximum entity size has been reached: quota exceeded")), "q")
    with pytest.raises(MalformedTask):
        check_sent(_answer(403, _error(403, "The message is too large")), "q")


@pytest.mark.parametrize("body", [b"", _PAGE, _error(401)])
def test_a_missing_right_is_believed_of_anybody(body: bytes) -> None:
    with pytest.raises(AccessDenied):
        check_sent(_answer(401, body), "q")


def test_a_receive_brings_what_the_broker_says_of_it() -> None:
    check_received(_answer(201, b"x", {"brokerproperties": "{}", "content-type": "text/html"}), "q", 201)
    with pytest.raises(NoAnswer):
        check_received(_answer(201, b"x"), "q", 201)
    with pytest.raises(NoAnswer):  # else `clear` would count a proxy's pages for ever
        check_received(_answer(200, _PAGE), "q", 200)
