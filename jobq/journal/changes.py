"""Who changed what of a queue, as it is kept for the audit page; the service's log has a line of the same."""

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final, Self

from jobq.formats.lazy_dataclass import dataclass
from jobq.journal.notes import MOST_VALUE, checked_count, checked_name, checked_time, decoded

_LAST_SECOND: Final = 2**32 - 1  # since the epoch
_MOST_CHARACTERS: Final = 200  # of each text
_MOST_IDS: Final = 10
CHANGE_TEXTS: Final = ("by", "address", "did", "filter", "state", "said")
_KEY: Final = re.compile(r"[0-9a-f]{8}-[0-9a-z]{0,40}")


@dataclass(frozen=True, kw_only=True)
class QueueChange:
    """Something that somebody has done.

    Attributes:
        at: when it began, wall time in seconds since the epoch.
        by: who: the id and the name of a token.
        address: from where; "" = not known.
        did: what, in a word such as `retry`.
        count: to how many; None = to the queue as such, or not counted.
        ids: the first of them.
        filter: what took them, where they were not chosen one by one.
        state: `began`, `done`, `refused` or `failed`: what only began, nobody has told the end of.
        said: what came of it.
    """

    at: float
    by: str
    address: str = ""
    did: str
    count: int | None = None
    ids: tuple[str, ...] = ()
    filter: str = ""
    state: str = "began"
    said: str = ""

    def encode(self) -> str:
        """Return it as JSON, cut to what a note holds."""
        held = {name: getattr(self, name)[:_MOST_CHARACTERS] for name in CHANGE_TEXTS}
        ids = [each[:_MOST_CHARACTERS] for each in self.ids[:_MOST_IDS]]
        text = json.dumps({**held, "at": self.at, "count": self.count, "ids": ids}, separators=(",", ":"))
        if len(text) > MOST_VALUE:  # ids that JSON writes six times as long; there are none such by our rules
            text = json.dumps({**held, "at": self.at, "count": self.count, "ids": []}, separators=(",", ":"))
        return text

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """Return what was encoded; None = it is nothing that we know."""
        return decoded(text, cls._read)

    @classmethod
    def _read(cls, held: Mapping[str, Any]) -> Self:
        return cls(
            at=checked_time(held["at"]),
            count=None if held["count"] is None else checked_count(held["count"]),
            ids=tuple(map(checked_name, held["ids"])),
            **{name: checked_name(held[name]) for name in CHANGE_TEXTS},
        )


def change_key(at: float, id_: str = "") -> str:
    """Return the key of a change that began then, seconds since the epoch: the latest sort first."""
    return f"{_LAST_SECOND - int(at):08x}-{id_}"


def is_change_key(key: str) -> bool:
    """Return whether `change_key` may have made it."""
    return _KEY.fullmatch(key) is not None


def new_change_key(at: float) -> str:
    """Return the key of one more change."""
    return change_key(at, secrets.token_hex(6))
