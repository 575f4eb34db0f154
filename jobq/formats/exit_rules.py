"""Exit rules: what becomes of a task that ended so, instead of what the budgets say (`push --on-exit`).

`WHEN=THEN`, the first that fits counts. WHEN is an exit code from 1 to 255, a signal such as SIGSEGV, `oom` (killed for
want of memory, by the kernel or by --memory-limit) or `timeout`. THEN is

    retry      put back after the backoff; consumes a retry, also for a signal
    delay:10m  likewise, after exactly so long
    fail       a dead letter at once, whatever retries are left
    queue:NAME goes on in another queue of the same location, with fresh budgets and this rule used up

Retries stay bounded (S7): when they are used up, every rule but `queue` ends in the dead-letter place; that one holds
once for each queue that it names.
"""

import re
import signal
from collections.abc import Iterable
from datetime import timedelta
from typing import Final, Literal

from jobq.formats import durations
from jobq.formats.lazy_dataclass import dataclass

_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # as `jobq.spec` has it
_CODES: Final = range(1, 256)


@dataclass(frozen=True)
class Action:
    """What to do.

    Attributes:
        kind: `retry`, `fail` or `queue`.
        delay: until the retry; None = the backoff's.
        queue: the name of another queue.
    """

    kind: Literal["retry", "fail", "queue"]
    delay: timedelta | None = None
    queue: str = ""


def parse(rule: str) -> tuple[str, Action]:
    """Return when a rule holds and what it says; raises ValueError with what would be right."""
    when, equals, then = rule.partition("=")
    if not equals:
        raise ValueError(
            f"{rule!r} is no rule: write CODE, SIGNAL, oom or timeout, =, and retry, fail, delay:10m or queue:NAME"
        )
    return _condition(when), _action(then)


def queues_of(rules: Iterable[str]) -> set[str]:
    """Return the queues to which rules may send a task on."""
    return {action.queue for _, action in map(parse, rules) if action.queue}


def _condition(when: str) -> str:
    if when.isdecimal() and int(when) in _CODES:
        return str(int(when))
    if when in ("oom", "timeout"):
        return when
    name = when.upper() if when.upper().startswith("SIG") else f"SIG{when.upper()}"
    if name in signal.Signals.__members__:
        return name
    raise ValueError(f"{when!r} is no exit code from 1 to 255, no signal, and neither oom nor timeout")


def _action(then: str) -> Action:
    word, colon, text = then.partition(":")
    if word == "delay" and colon:
        return Action("retry", durations.parse(text))
    if word == "queue" and colon:
        if not _QUEUE_NAME.fullmatch(text):
            raise ValueError(f"{text!r} is no name of a queue: 1 to 63 letters, digits, dots, dashes and underscores")
        return Action("queue", queue=text)
    if not colon and word == "retry":
        return Action("retry")
    if not colon and word == "fail":
        return Action("fail")
    raise ValueError(
        f"{then!r} is neither retry, nor fail, nor delay: with a duration, such as delay:10m, nor queue:NAME"
    )
