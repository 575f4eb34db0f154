"""A taken task without `async`: what `jobq.sync.Queue.get` hands out."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any

from jobq.errors import JobqError
from jobq.fencing import FencingNumber
from jobq.run.callbacks.taken_task import TakenTask
from jobq.run.worker.take_one import Taking
from jobq.task import Task


class SyncTakenTask:
    """As `TakenTask`, each verb blocking; its lease is renewed by the queue's own thread, whatever the program does.

    Args:
        taken: lives on the queue's loop.
        call: runs work there and waits for it.
    """

    def __init__(self, taken: TakenTask, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._taken = taken
        self._call = call

    @property
    def id(self) -> str:
        """The task's id."""
        return self._taken.id

    @property
    def task(self) -> Task:
        """As it was delivered; a copy."""
        return self._taken.task

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return self._taken.attempt

    @property
    def fencing_number(self) -> FencingNumber:
        """Only rises for one task (S3)."""
        return self._taken.fencing_number

    @property
    def checkpoint(self) -> str | None:
        """What an earlier attempt saved last."""
        return self._taken.checkpoint

    @property
    def lock_lost(self) -> bool:
        """Whether the lease is, or may be, no longer ours; look at it before every step that must not overlap."""
        return self._taken.lock_lost

    @property
    def stop_requested(self) -> bool:
        """Whether it was canceled, is over its time limit or is to be given back: end soon."""
        return self._taken.stop_requested.is_set()

    def remaining(self) -> float:
        """Return the seconds to the lease's deadline; each renewal moves it."""
        return self._taken.remaining()

    def save_checkpoint(self, value: str) -> None:
        """Durably save the task's progress; as `SyncTaskContext.save_checkpoint`."""
        self._call(self._taken.save_checkpoint(value))

    def complete(self, value: Any = None) -> None:
        """End the task as done; as `TakenTask.complete`."""
        self._call(self._taken.complete(value))

    def fail(self, error: BaseException | str) -> None:
        """End the attempt as failed; as `TakenTask.fail`."""
        self._call(self._taken.fail(error))


class SyncTaking:
    """The context of `jobq.sync.Queue.get`.

    Args:
        taking: to be entered on the queue's loop.
        call: runs work there and waits for it.
    """

    def __init__(self, taking: Taking, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._taking = taking
        self._call = call

    def __enter__(self) -> SyncTakenTask | None:
        try:
            taken: TakenTask | None = self._call(self._taking.__aenter__())
        except BaseException as error:
            if self._taking.is_entered:  # a Ctrl-C that came together with the task
                with suppress(JobqError):
                    self._call(self._taking.__aexit__(type(error), error, None))
            raise
        return None if taken is None else SyncTakenTask(taken, self._call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._taking.__aexit__(kind, error, trace))
