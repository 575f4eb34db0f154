"""What tells two works of one id apart: the id, and all that stands beside a body, is what its sender says."""

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
