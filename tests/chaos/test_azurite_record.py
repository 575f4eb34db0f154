"""What Azurite's answers say of leases: only what it accepted, and never a longer lease than it gave."""

from tests.chaos.azurite_record import AzuriteRecord
from tests.chaos.store_truth import Attempt
from tests.support.http_proxy import ProxiedRequest

PATH = "/account/q/messages"
ANSWER = (
    '\ufeff<?xml version="1.0" encoding="utf-8"?><QueueMessagesList><QueueMessage><MessageId>m</MessageId>'
    "<DequeueCount>{}</DequeueCount><MessageText>{{&quot;id&quot;:&quot;a&quot;}}</MessageText>"
    "</QueueMessage></QueueMessagesList>"
)


def request(
    method: str,
    path: str = PATH,
    status: int | None = 204,
    *,
    at: float,
    body: str = "",
    answer: str = "",
    **query: str,
) -> ProxiedRequest:
    made = ProxiedRequest(method, path, query, body.encode(), status=status, answer=answer.encode(), began=at)
    made.ended = None if status is None else at + 0.5
    return made


def record_of(*requests: ProxiedRequest) -> AzuriteRecord:
    record = AzuriteRecord("q")
    record.read(list(requests))
    return record


def received(at: float, number: int = 1) -> ProxiedRequest:
    return request("GET", status=200, at=at, answer=ANSWER.format(number), visibilitytimeout="5")


def test_a_lease_is_what_was_asked_for_from_the_moment_of_asking() -> None:
    record = record_of(received(10.0), request("PUT", f"{PATH}/m", at=12.0, visibilitytimeout="5"))
    lease = record.leases[Attempt("a", 1)]
    assert (lease.expiries, lease.settlements, lease.ended) == ([15.0, 17.0], [], None)
    assert record.ends == {}


def test_what_was_refused_has_not_happened() -> None:
    record = record_of(
        received(10.0),
        request("PUT", f"{PATH}/m", 404, at=12.0, visibilitytimeout="5"),
        request("DELETE", f"{PATH}/m", 400, at=13.0),
    )
    assert record.leases[Attempt("a", 1)].expiries == [15.0]
    assert record.ends == {}


def test_a_requeue_then_a_deletion() -> None:
    record = record_of(
        received(10.0),
        request("PUT", f"{PATH}/m", at=12.0, body="<QueueMessage/>", visibilitytimeout="0"),
        received(13.0, 2),
        request("DELETE", f"{PATH}/m", at=14.0),
    )
    first, second = record.leases[Attempt("a", 1)], record.leases[Attempt("a", 2)]
    assert (first.settlements, first.ended) == (["ready"], 12.0)
    assert (second.settlements, second.ended) == (["done"], 14.0)
    assert record.ends == {"a": ["done"]}


def test_a_dead_letter_is_written_before_its_message_is_deleted() -> None:
    record = record_of(
        received(10.0),
        request("POST", "/account/q-failed/messages", 201, at=11.0, body='{"id":"a"}'),
        request("DELETE", f"{PATH}/m", at=12.0),
    )
    assert record.ends == {"a": ["dead"]}


def test_what_has_no_answer_yet_stays() -> None:
    record, requests = AzuriteRecord("q"), [request("DELETE", f"{PATH}/m", None, at=12.0)]
    record.read([received(10.0)])
    record.read(requests)
    assert record.ends == {}
    requests[0].status, requests[0].ended = 204, 13.0
    record.read(requests)
    assert (record.ends, requests) == ({"a": ["done"]}, [])


def test_a_look_is_no_receive() -> None:
    looked = request("GET", status=200, at=10.0, answer=ANSWER.format(0), peekonly="true")
    assert record_of(looked).leases == {}
