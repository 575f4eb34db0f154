"""What a worker tells of itself every now and then, so that an idle one is seen, too."""

import json
from typing import Final, Self

from jobq.formats.lazy_dataclass import dataclass

REPORT_SECONDS: Final = 30.0
GONE_SECONDS: Final = 90.0  # without a word: it is gone, or nobody can hear it
FORGOTTEN_SECONDS: Final = 86_400.0
STOPPED: Final = "stopped"
COUNTS: Final = ("succeeded", "failed", "lost", "given_back")
_MOST_CHARACTERS: Final = 200
_UNKNOWN: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


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
        try:
            held = json.loads(text)
            return cls(
                holder=str(held["holder"]),
                host=str(held["host"]),
                version=str(held["version"]),
                slots=int(held["slots"]),
                busy=int(held["busy"]),
                state=str(held["state"]),
                started=float(held["started"]),
                **{name: int(held.get(name, 0)) for name in COUNTS},
            )
        except _UNKNOWN:
            return None

    def state_after(self, seconds: float) -> str:
        """Return what it does, or `gone`, if this was told so long ago."""
        return "gone" if self.state != STOPPED and seconds > GONE_SECONDS else self.state
