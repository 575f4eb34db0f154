"""The audit: one line of JSON for each change, and for each refusal, on standard error; no contents (A5)."""

import json
import logging
import time
from typing import Any, Final

_log: Final = logging.getLogger("jobq.audit")


def write(did: str, *, caller: str = "-", address: str = "-", **more: Any) -> None:
    """Write who did what, and how it ended.

    Args:
        did: what was done.
        caller: the id of a token; "-" = anyone.
        address: where the caller is.
        **more: to what it was done.
    """
    _log.info("%s", json.dumps({"at": round(time.time(), 3), "caller": caller, "from": address, "did": did, **more}))
