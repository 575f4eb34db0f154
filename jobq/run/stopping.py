"""The two levels of stopping: stop receiving, stop working (architecture 6); and the pause of a preemption notice."""

from typing import Final

from jobq.flag import Flag

GIVE_BACK_SECONDS: Final = 10.0  # after the stop grace: to kill, give back and end


class Stopping:
    """How far a worker and its attempts are to stop; each level includes those before it and never goes back.

    A pause is different: a preemption that is called off ends it, and the worker goes on.

    Attributes:
        receiving: set when nothing new may be taken, ever again.
        working: set when what runs must end and go back.
        at_once: set when it must end without grace.
        interrupted: set while what runs must end and go back, be it by `stop` or by `pause`.
        grace: seconds that a pause leaves to what runs; None = as for a stop.
        cause: in plain words, for the log.
    """

    def __init__(self) -> None:
        self.receiving = Flag()
        self.working = Flag()
        self.at_once = Flag()
        self.interrupted = Flag()
        self.resumed = Flag()
        self.resumed.set()
        self.grace: float | None = None
        self.cause = ""
        self._drained_by = ""

    def drain(self, cause: str) -> None:
        """Take nothing new; finish what runs."""
        self._drained_by = self._drained_by or cause
        self.cause = self.cause or cause
        self.receiving.set()

    def stop(self, cause: str) -> None:
        """Take nothing new; end what runs within its grace and give it back."""
        if not self.interrupted.is_set():
            self.cause = cause  # what had only drained until now did not end anything
        self.drain(cause)
        self.working.set()
        self.interrupted.set()

    def now(self, cause: str) -> None:
        """As `stop`, without grace."""
        self.stop(cause)
        self.at_once.set()

    @property
    def paused(self) -> bool:
        """Whether nothing may be taken for now."""
        return not self.resumed.is_set()

    def pause(self, cause: str, grace: float) -> None:
        """Take nothing new for now; end what runs within `grace` seconds and give it back (P8)."""
        if not self.paused:
            if not self.interrupted.is_set():
                self.cause = cause
            self.grace = grace
            self.resumed.clear()
            self.interrupted.set()

    def resume(self) -> None:
        """End a pause; changes nothing about a stop."""
        if self.paused:
            self.grace = None
            self.resumed.set()
            if not self.working.is_set():
                self.cause = self._drained_by
                self.interrupted.clear()
