"""Every error that jobq raises, in one tree.

JobqError
├── ConfigurationError        a setting, spec or platform that cannot work; nothing was attempted      exit 3
│   ├── InvalidSpec           the queue spec cannot be read
│   ├── BackendMissing        no backend serves this scheme, or its extra is not installed
│   ├── StoreUnusable         the store cannot be used as it is: corrupt, foreign, of another version or machine
│   └── AccessDenied          the store exists and refuses us
├── MalformedTask             bytes or arguments that are not a task: says what and where             exit 2
├── SourceChanged             a walk was begun over other data, or with other options                 exit 2
├── QueueNotFound             the queue does not exist                                                exit 4
├── TaskNotFound              the journal knows no such task                                          exit 4
├── TaskFailed                a task whose value was asked for did not succeed                        exit 1
├── BatchNotFound             the queue has no batch of this name                                     exit 4
├── BackendUnavailable        the store did not do it, as far as is known; repeating is safe          exit 75
│   ├── Throttled             the service is asked too much: it certainly did nothing                 exit 75
│   └── AnswerLost            it may or may not have done it; repeating is safe                       exit 75
├── PushError
│   ├── DuplicateTask         the id is taken by a task with another payload (S8)                      exit 1
│   ├── BatchSealed           the batch takes no more tasks; none of the call was added                exit 1
│   └── PushUnknown           the answer was lost; the tasks may or may not be queued (S8)             exit 75
└── LeaseError
    ├── LockLost              the lease is no longer ours; nothing was changed (S4)                    exit 1
    ├── LeaseHeld             the named lease is held elsewhere (S10)                                  exit 75
    ├── ConfirmationDiffers   the token of a named lease has confirmed another value                   exit 1
    └── SettlementUnknown     the answer to a settle was lost; no one can say (S5)                     exit 75

`exit_code` is what the command line ends with (architecture 12). No message holds a connection string, key or URL
query.
"""

from collections.abc import Sequence
from typing import ClassVar


class JobqError(Exception):
    """Root of everything jobq raises on purpose.

    Attributes:
        done: of a `redrive` or `purge_dead` of several, the ids for which it was done all the same, as far as the
            backend knows; where it does not, these may be fewer than were done.
    """

    exit_code: ClassVar[int] = 1
    done: Sequence[str] = ()


class ConfigurationError(JobqError):
    """A setting, spec or platform cannot work; the message says what to change."""

    exit_code = 3


class InvalidSpec(ConfigurationError):
    """The queue spec cannot be read."""


class BackendMissing(ConfigurationError):
    """No backend serves this scheme, or the package extra that brings it is not installed."""


class StoreUnusable(ConfigurationError):
    """The store cannot be used as it is: corrupt, not ours, of another version, or of another machine."""


class AccessDenied(ConfigurationError):
    """The store exists and refuses this user."""


class MalformedTask(JobqError):
    """These bytes or arguments are not a task.

    Args:
        what: the fault, in plain words.
        where: the place of the fault, as a path such as `env.HOME` or `byte 17`; empty for the whole message.
    """

    exit_code = 2

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.what = what
        self.where = where


class SourceChanged(JobqError):
    """A traversal was begun over other data, or with other options; nothing was done."""

    exit_code = 2


class QueueNotFound(JobqError):
    """The queue does not exist; `jobq QUEUE create` or a first push makes it."""

    exit_code = 4


class QueueNotEmpty(JobqError):
    """The queue holds tasks or dead letters, and was to be deleted only without."""

    exit_code = 2


class TaskNotFound(JobqError):
    """The journal knows no task with this id: it was never there, was cleared or purged, or is forgotten.

    Args:
        message: what is not known.
        ids: of several tasks, those of which nothing is known, as far as anybody knows their ids.
    """

    exit_code = 4

    def __init__(self, message: str, ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ids = list(ids)


class TaskFailed(JobqError):
    """A task whose value was asked for did not succeed.

    Args:
        message: how it ended.
        id_: of the task.
        result: a `jobq.TaskResult`.
    """

    def __init__(self, message: str, id_: str, result: object) -> None:
        super().__init__(message)
        self.id = id_
        self.result = result


class BatchNotFound(JobqError):
    """The queue has no batch of this name: nobody began it, or it ended so long ago that it is forgotten."""

    exit_code = 4


class BackendUnavailable(JobqError):
    """The store did not do what was asked, and repeating it is safe; `jobq.backend` says how sure that is."""

    exit_code = 75


class AllPutBack(BackendUnavailable):
    """Tasks were received, and all of them had to be put back for later; others may wait behind them."""


class Throttled(BackendUnavailable):
    """The service refuses for now, since it is asked too much; it did nothing."""


class AnswerLost(BackendUnavailable):
    """The request was sent, and no one can say whether it took effect; repeating it is safe."""


class PushError(JobqError):
    """A push that did not simply succeed."""


class DuplicateTask(PushError):
    """The id already names a task with another payload (S8); none of this call's tasks was added."""


class BatchSealed(PushError):
    """The batch is sealed or has finished, so it takes no new task; none of this call's tasks was added."""


class PushUnknown(PushError):
    """The answer to a push was lost (S8).

    Args:
        message: what happened.
        ids: the tasks that may or may not be queued; repeating the push with these ids is safe exactly where
            the backend declares `idempotent_push`.
    """

    exit_code = 75

    def __init__(self, message: str, ids: Sequence[str]) -> None:
        super().__init__(message)
        self.ids = tuple(ids)


class LeaseError(JobqError):
    """What can befall a verb that is fenced by a receipt."""


class LockLost(LeaseError):
    """The receipt is stale: the lease expired, or the task was settled or taken; nothing was changed (S4)."""


class LeaseHeld(LeaseError):
    """The named lease is held elsewhere, or closed for now (S10); the message says by whom and for how long."""

    exit_code = 75


class ConfirmationDiffers(LeaseError):
    """The token of a named lease has confirmed another value already; nothing was changed."""


class SettlementUnknown(LeaseError):
    """The answer to a settle was lost and the service cannot say whether it took effect (S5)."""

    exit_code = 75
