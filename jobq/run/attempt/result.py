"""What a task came to, as JSON that every store takes, or the reason why it is not kept (architecture 8).

Training runs write NaN, and programs text that is no UTF-8: what can be kept is kept. NaN and infinities become the
strings that Python's json writes for them, and bytes that are no text the replacement character.
"""

import json
from dataclasses import replace
from typing import Final

from jobq.errors import MalformedTask
from jobq.formats import strict_json
from jobq.journal.records import MAX_VALUE_BYTES
from jobq.run.process import call_function
from jobq.task import Outcome

_MOST_SAID: Final = 200  # characters of what a function's process says of its result
MAX_VALUE_DEPTH: Final = 24  # what wraps it in a settle, a record or an answer stays within strict_json.MAX_DEPTH


def with_returned(outcome: Outcome, returned: object) -> Outcome:
    """Return the outcome with what a callback returned, of any size, or with why that is no value."""
    try:
        written = json.dumps(returned)
    except Exception as error:  # noqa: BLE001 - classes of the user's are asked for their items, and may raise anything
        return replace(outcome, value_lost=call_function.why_no_json(returned, error))
    return with_text(outcome, written)


def with_written(outcome: Outcome, written: bytes | None) -> Outcome:
    """Return the outcome with what a command wrote to $JOBQ_RESULT_FILE, or with why that is no value."""
    if written is not None and len(written) > MAX_VALUE_BYTES:
        return replace(outcome, value_lost=f"it is longer than {MAX_VALUE_BYTES} bytes")
    text = (written or b"").decode("utf-8", "replace")
    return with_text(outcome, text) if text.strip() else outcome


def fit_to_keep(outcome: Outcome) -> Outcome:
    """Return the outcome, with the reason where the value is longer than what is kept of one."""
    if outcome.value is None or len(strict_json.dumps(outcome.value)) <= MAX_VALUE_BYTES:
        return outcome
    return replace(outcome, value_lost=f"it is longer than {MAX_VALUE_BYTES} bytes")


def with_text(outcome: Outcome, text: str) -> Outcome:
    """Return the outcome with the value in a text, or with why that is none."""
    try:
        return replace(outcome, value=strict_json.loads_leniently(text, MAX_VALUE_DEPTH))
    except MalformedTask as fault:
        said = text[:_MOST_SAID] if text.startswith(call_function.NO_JSON) else f"it is refused: {fault}"
        return replace(outcome, value_lost=said)
