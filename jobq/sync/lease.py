"""A named lease without `async`: what `jobq.sync.Queue.lease` returns."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from jobq.errors import JobqError
from jobq.lease.named import NamedLease
from jobq.lease.store import Confirmation


class Lease:
    """A named lease for programs without `async`; `Queue.lease` makes one. Its context is entered once.

    Args:
        lease: to be kept on the queue's loop.
        call: runs work there and waits for it.
    """

    def __init__(self, lease: NamedLease, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._lease = lease
        self._call = call

    def __enter__(self) -> Self:
        try:
            self._call(self._lease.__aenter__())
        except BaseException:
            if self._lease.is_entered:  # a Ctrl-C that came together with the grant
                with suppress(JobqError):
                    self._call(self._lease.__aexit__(None, None, None))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._lease.__aexit__(kind, error, trace))

    @property
    def token(self) -> int:
        """The fencing token: rises with every grant of this name, and is never used again (S3)."""
        return self._lease.token

    @property
    def cursor(self) -> str | None:
        """The last cursor that was acknowledged (S9)."""
        return self._lease.cursor

    @property
    def lost(self) -> bool:
        """Whether the lease is, or may be, no longer ours; look at it before every step that must not overlap."""
        return self._lease.is_lost

    def remaining(self) -> float:
        """Return the seconds that are left to the deadline; each renewal moves it."""
        return self._lease.remaining()

    def check(self) -> None:
        """Raise LockLost if the lease is, or may be, no longer ours."""
        self._lease.check()

    def save(self, cursor: str) -> None:
        """Save how far the work has come; as `NamedLease.save`."""
        self._call(self._lease.save(cursor))

    def confirm(self, value: str = "") -> Confirmation:
        """Take the name for good; as `NamedLease.confirm`."""
        answer: Confirmation = self._call(self._lease.confirm(value))
        return answer

    def release(self) -> None:
        """Give it back now; as `NamedLease.release`."""
        self._call(self._lease.release())
