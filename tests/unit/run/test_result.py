"""What of a task's result is kept: all that JSON can say of it, and otherwise why not."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.formats import strict_json
from jobq.journal.records import MAX_VALUE_BYTES
from jobq.run.attempt.result import MAX_VALUE_DEPTH, fit_to_keep, with_returned, with_written
from jobq.run.process import call_function
from jobq.task import Outcome, OutcomeKind
from tests.process import callbacks

DONE = Outcome(kind=OutcomeKind.SUCCEEDED)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (b'{"loss": NaN, "all": [Infinity, -Infinity]}', {"loss": "NaN", "all": ["Infinity", "-Infinity"]}),
        (b"1e999", "Infinity"),
        (b'"caf\xe9"', "caf\ufffd"),
        (b'"\\ud800"', "?"),
        (b" 7\n", 7),
        (b"  \n", None),
    ],
)  # fmt: skip
def test_what_can_be_kept_is_kept(written: bytes, value: object) -> None:
    outcome = with_written(DONE, written)
    assert (outcome.value, outcome.value_lost) == (value, "")
    strict_json.loads(strict_json.dumps(outcome.value))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (b"{", "not JSON"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"[" * 25 + b"]" * 25, "deep"),
        (b'"' + b"x" * MAX_VALUE_BYTES + b'"', "longer than 65536 bytes"),
        (b"9" * 500, "digits"),
    ],
)
def test_what_cannot_is_said(written: bytes, why: str) -> None:
    outcome = with_written(DONE, written)
    assert outcome.value is None
    assert why in outcome.value_lost


@pytest.mark.parametrize(
    "returned",
    [object(), {"a": b""}, {1: 1, "1": 2}, callbacks.deep(), callbacks.changing(), nested(MAX_VALUE_DEPTH + 1)],
)
def test_a_returned_value_that_is_none_is_no_failure(returned: object) -> None:
    outcome = with_returned(DONE, returned)
    assert (outcome.kind, outcome.value) == (OutcomeKind.SUCCEEDED, None)
    assert outcome.value_lost


def test_a_long_value_is_its_callers_and_not_the_journals() -> None:
    outcome = fit_to_keep(with_returned(DONE, "x" * MAX_VALUE_BYTES))
    assert outcome.value == "x" * MAX_VALUE_BYTES
    assert "longer" in outcome.value_lost


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(deadline=None)  # a machine may be busy
@given(VALUES)
def test_whatever_is_kept_passes_every_later_door(value: object) -> None:
    outcome = fit_to_keep(with_returned(DONE, value))
    assert outcome.value_lost == ""
    wrapped = {"results": [{"attempt": {"value": outcome.value}}]}
    assert strict_json.loads(strict_json.dumps(wrapped)) == wrapped
    written = json.dumps(value)
    if not any(odd in written for odd in ("NaN", "Infinity", "\\ud")):
        assert json.loads(written) == outcome.value


def test_the_deepest_value_that_is_kept_may_be_wrapped() -> None:
    outcome = with_returned(DONE, nested(MAX_VALUE_DEPTH))
    assert outcome.value_lost == ""
    strict_json.loads(strict_json.dumps([[[[{"attempt": {"value": outcome.value}}]]]]))


def test_why_a_result_is_no_json_names_its_type() -> None:
    assert with_returned(DONE, {1, 2}).value_lost == "it is not JSON: a set (TypeError)"
    said = call_function.why_no_json({1}, TypeError())  # as the process of a function writes it
    assert with_written(DONE, said.encode()).value_lost == said
