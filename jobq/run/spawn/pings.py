"""Whether the guardian lives: nobody waits for one without a limit that is stopped, frozen or hangs."""

import asyncio
import signal
from collections.abc import Callable
from typing import Final

from jobq.run.guardian.protocol import Message

SECONDS: Final = 2.0
MOST_UNANSWERED: Final = 5  # in a row; counted, not timed: after a suspend the guardian has as much time as ever


class Pings:
    """Asks the guardian again and again; continues one that may have been stopped, and kills one that stays silent.

    All of it runs on the event loop, which reads what has come before it looks at its timers: a loop that was blocked
    blames nobody.

    Args:
        send: sends a message to the guardian.
        signal_guardian: sends it a signal, if it is there.
        lose: called with the reason when it was killed.
        seconds: from one question to the next.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        signal_guardian: Callable[[int], None],
        lose: Callable[[str], None],
        seconds: float = SECONDS,
    ) -> None:
        self._send = send
        self._signal = signal_guardian
        self._lose = lose
        self._seconds = seconds
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Ask from now on."""
        self._ping()

    def is_answered(self) -> None:
        """Note a word of the guardian's, whatever it was."""
        self._unanswered = 0

    def stop(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _ping(self) -> None:
        if self._unanswered == MOST_UNANSWERED:
            self._signal(signal.SIGKILL)
            self._lose(f"it said nothing for {self._seconds * MOST_UNANSWERED:g} s, and was killed")
            return
        if self._unanswered:
            self._signal(signal.SIGCONT)
        self._unanswered += 1
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._ping)
        self._send({"op": "ping", "id": 0})
