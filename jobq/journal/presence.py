"""What a worker tells of itself every now and then, so that an idle one is seen, too."""

import json
from collections.abc import Mapping
from typing import Any, Final, Self

from jobq.formats.lazy_dataclass import dataclass
from jobq.journal.notes import checked_count, checked_name, checked_time, decoded

REPORT_SECONDS: Final = 30.0
GONE_SECONDS: Final = 90.0  # without a word: it is gone, or nobody can hear it
FORGOTTEN_SECONDS: Final = 86_400.0
STOPPED: Final = "stopped"
COUNTS: Final = ("succeeded", "failed", "lost", "given_back")
_MOST_CHARACTERS: Final = 200


@dataclass(frozen=True, kw_only=True)
class WorkerPresence:
    """A worker as it was when it last told of itself.

    Attributes:
        holder: HOST:PID, as its leases have it.
        host: the machine.
        version: of jobq.
        slots: how many tasks it can run at once.
        busy: how many run.
        state: `working`, `paused` (it takes nothing for now), `draining` or `stopped`.
        started: wall time in seconds since the epoch, by its own clock.
        succeeded: tasks done since then.
        failed: tasks that failed, timed out or crashed here, however often.
        lost: attempts whose lease was lost.
        given_back: attempts that a stop cut short.
    """

    holder: str
    host: str
    version: str
    slots: int
    busy: int
    state: str
    started: float
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    given_back: int = 0

    def encode(self) -> str:
        """Return it as JSON."""
        return json.dumps({**vars(self), "host": self.host[:_MOST_CHARACTERS]}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Self | None:
        """Return what was encoded; None = it is nothing that we know; what a newer jobq has added is left out."""
        return decoded(text, cls._read)

    @classmethod
    def _read(cls, held: Mapping[str, Any]) -> Self:
        return cls(
            holder=checked_name(held["holder"]),
            host=checked_name(held["host"]),
            version=checked_name(held["version"]),
            slots=checked_count(held["slots"]),
            busy=checked_count(held["busy"]),
            state=checked_name(held["state"]),
            started=checked_time(held["started"]),
            **{name: checked_count(held.get(name, 0)) for name in COUNTS},
        )

    def state_after(self, seconds: float) -> str:
        """Return what it does, or `gone`, if this was told so long ago."""
        return "gone" if self.state != STOPPED and seconds > GONE_SECONDS else self.state
