"""Mutants of our own requests to a Storage Queue: each would be believed, or sent, wrongly (S4, S5, S8, P1)."""

from typing import Final

from tests.mutants.mutant import Mutant

_REQUESTS: Final = "backends/jobq_azure/common/storage_requests.py"
_CLIENT: Final = "backends/jobq_azure/storage/queue_client.py"
_MESSAGES: Final = "backends/jobq_azure/storage/queue_messages.py"
_REFUSALS: Final = "tests/azure/wire/test_refusals.py"

STORAGE_QUEUE: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="a sweep goes by this machine's clock",
        file="backends/jobq_azure/storage/large_payloads.py",
        text="said[0] - _SWEEP_AGE",
        wrong="dt.datetime.now(dt.UTC) - _SWEEP_AGE",
        test="tests/azure/payloads/test_payloads.py::test_s1_a_sweep_by_a_machine_whose_clock_is_ahead_takes_no_payload_of_a_push_under_way",
    ),
    Mutant(
        name="a queue's request is sent again where its connection was found closed",
        file=_REQUESTS,
        text="_CLOSED if repeats_closed else ()",
        wrong="_CLOSED",
        test=f"{_REFUSALS}::test_an_answer_that_breaks_off_is_none",
    ),
    Mutant(
        name="a queue's request follows a redirect",
        file=_REQUESTS,
        text="allow_redirects=False",
        wrong="allow_redirects=True",
        test=f"{_REFUSALS}::test_no_redirect_is_followed",
    ),
    Mutant(
        name="any success of a Storage Queue counts as the one that was asked for",
        file=_CLIENT,
        text="if answer.status == done:",
        wrong="if answer.status < HTTPStatus.MULTIPLE_CHOICES:",
        test=f"{_REFUSALS}::test_another_success_than_the_documented_one_is_none",
    ),
    Mutant(
        name="a put whose answer cannot be read counts as refused (Storage Queue)",
        file=_CLIENT,
        text="        except (ValueError, OverflowError):\n            raise Unreadable(",
        wrong="        except (ValueError, OverflowError):\n            raise BackendUnavailable(",
        test="tests/azure/wire/test_ways.py::test_a_push_whose_answer_cannot_be_read_is_in_doubt",
    ),
    Mutant(
        name="one of two receipts is taken (Storage Queue)",
        file=_CLIENT,
        text='if len(new) != 1 or "" in new:',
        wrong='if not new or "" in new:',
        test="tests/azure/wire/test_messages.py::test_two_receipts_in_one_answer_are_none",
    ),
    Mutant(
        name="a carriage return is stored as a line feed (Storage Queue)",
        file=_MESSAGES,
        text='.replace("\\r", "&#13;")',
        wrong="",
        test="tests/azure/wire/test_messages.py::test_any_text_is_written_as_xml",
    ),
    Mutant(
        name="an answer with a document type is read (Storage Queue)",
        file=_MESSAGES,
        text='raise ValueError("an answer with a document type")',
        wrong="pass",
        test="tests/azure/wire/test_messages.py::test_what_no_service_answers_is_not_read",
    ),
    Mutant(
        name="a tenant that the service names is not followed (Storage Queue)",
        file="backends/jobq_azure/common/storage_signing.py",
        text='self._tenant = {"tenant_id": found[1]}',
        wrong="self._tenant = {}",
        test="tests/azure/wire/test_signing.py::test_a_challenge_is_answered_once_with_a_token_of_that_tenant",
    ),
)
