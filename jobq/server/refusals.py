"""Refusals in the audit: the first at once, those that follow counted each minute: nobody floods the log (A8)."""

import asyncio
from dataclasses import dataclass
from typing import Final

from jobq.server.request import RequestCall
from jobq.server.tokens import audit

STATUSES: Final = frozenset({401, 403, 429})
_SECONDS: Final = 60.0
_MOST_KINDS: Final = 10_000  # in a minute; what more strangers try counts as one: it hides nobody who has a token
_STRANGER: Final = "-"
_MOST_QUEUES: Final = 10

_Kind = tuple[str, str, str, int]  # whose token, from where, what was tried, and the answer
_OTHERS: Final = (_STRANGER, "-", "others", 0)


@dataclass(slots=True)
class _Seen:
    queues: set[str]
    more: int
    timer: asyncio.TimerHandle


class Refusals:
    """The refusals of the last minute, by who tried what.

    Args:
        seconds: how long those that follow a first one are counted before their number is written.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._seen: dict[_Kind, _Seen] = {}

    def note(self, call: RequestCall, did: str, status: int) -> None:
        """Write a refusal, or count it if there was such a one within the minute."""
        kind = (call.caller, call.address, did, status)
        seen = self._seen.get(kind)
        if seen is None and call.caller == _STRANGER and len(self._seen) >= _MOST_KINDS:
            kind, seen = _OTHERS, self._seen.get(_OTHERS)
        if seen is None:
            timer = asyncio.get_running_loop().call_later(self._seconds, self._end, kind)
            self._seen[kind] = _Seen(set(), int(kind is _OTHERS), timer)
            if kind is not _OTHERS:
                call.audit(did, status)
            return
        seen.more += 1
        if kind is not _OTHERS and len(seen.queues) < _MOST_QUEUES:
            seen.queues.add(call.queue)

    def end(self) -> None:
        """Write what is counted by now."""
        for kind in list(self._seen):
            self._end(kind)

    def _end(self, kind: _Kind) -> None:
        seen = self._seen.pop(kind)
        seen.timer.cancel()
        if seen.more:
            caller, address, did, status = kind
            audit(did, caller=caller, address=address, queues=sorted(seen.queues), status=status, more=seen.more)
