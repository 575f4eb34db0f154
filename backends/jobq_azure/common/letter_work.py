"""What a message says of its task: the book in which it is kept, and what tells two works of one id apart."""

from hashlib import blake2b

from jobq.errors import MalformedTask
from jobq.task import Task


def work_of(task: Task) -> str:
    """Return what is equal for two messages of the same work and id: of signed work, all that was signed, and by whom.

    Whether a signature is valid is not known here, so a copy with another signature is other work.
    """
    signed = task.work if task.work is not None and task.work.signatures else None
    what = task.fingerprint() if signed is None else (signed.text, signed.signatures)
    return blake2b(repr((task.id, what)).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def work_in(body: bytes) -> str:
    """Return the same of a message; of one that is no task, what tells its bytes from others."""
    try:
        return work_of(Task.decode(body))
    except MalformedTask:
        return blake2b(body, digest_size=16, person=b"no task").hexdigest()


def ledger_of(task: Task) -> str:
    """Return the book in which a task is kept; empty = in none."""
    return (task.work.ledger if task.work is not None else None) or ""


def ledger_in(body: bytes) -> str:
    """Return the book in which the task of a message is kept; empty = in none, or it is no task."""
    if b'"ledger"' not in body:
        return ""
    try:
        return ledger_of(Task.decode(body))
    except MalformedTask:
        return ""
