"""Exit rules: what becomes of a task that ended so, instead of what the budgets say (`push --on-exit`).

`WHEN=THEN`, the first that fits counts. WHEN is an exit code from 1 to 255, a signal such as SIGSEGV, `oom` (killed for
want of memory, by the kernel or by --memory-limit) or `timeout`. THEN is

    retry      put back after the backoff; consumes a retry, also for a signal
    delay:10m  likewise, after exactly so long
    fail       a dead letter at once, whatever retries are left

Retries stay bounded (S7): when they are used up, every rule ends in the dead-letter place.
"""

import signal
from datetime import timedelta
from typing import Final, Literal

from jobq.formats import durations
from jobq.formats.lazy_dataclass import dataclass

_CODES: Final = range(1, 256)


@dataclass(frozen=True)
class Action:
    """What to do.

    Attributes:
        kind: `retry` or `fail`.
        delay: until the retry; None = the backoff's.
    """

    kind: Literal["retry", "fail"]
    delay: timedelta | None = None


def parse(rule: str) -> tuple[str, Action]:
    """Return when a rule holds and what it says; raises ValueError with what would be right."""
    when, equals, then = rule.partition("=")
    if not equals:
        raise ValueError(f"{rule!r} is no rule: write CODE, SIGNAL, oom or timeout, =, and retry, fail or delay:10m")
    return _condition(when), _action(then)


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
    if not colon and word == "retry":
        return Action("retry")
    if not colon and word == "fail":
        return Action("fail")
    raise ValueError(f"{then!r} is neither retry, nor fail, nor delay: with a duration, such as delay:10m")
