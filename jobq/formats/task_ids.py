"""What the ids of tasks and batches look like."""

import re
from typing import Final

VALID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,99}")
BATCH: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a name that ids can begin with
PARAM: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
OF_PUSH: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")  # as `jobq.task.new_id` makes them


def digest(text: str, size: int) -> str:
    """Return so many bytes of a hash, in hexadecimal."""
    from hashlib import blake2b  # noqa: PLC0415 - loads OpenSSL, which those who only look start without

    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
