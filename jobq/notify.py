"""Notices at the end of a round of a batch: Standard Webhooks 1.0, composed and signed by the worker, sent by a task.

At the end of a round a task is added for each address, in the step in which the batch finishes. Its worker reads the
address and the facts from the batch, not from the task: so one that somebody has forged says nothing that is not true.
The secret is the worker's; the process that sends gets the signature alone.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from jobq.errors import ConfigurationError

CALL: Final = "jobq.notify:send"
GONE_EXIT: Final = 10  # of a task whose address wants no more
RETRIES: Final = 100  # some eight hours
SECONDS: Final = 15.0  # of one try
MOST_ADDRESS_CHARACTERS: Final = 2000
_PREFIX: Final = "whsec_"
_LEAST_KEY_BYTES: Final = 16
_GONE: Final = 410


def check_address(url: str) -> str:
    """Return an address to which notices can be sent; raises ValueError, which says what is wrong."""
    parts = urlsplit(url)
    try:
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError("is no http:// or https:// address of a host and a port")
    if "@" in parts.netloc:
        raise ValueError("names a user or a password, which is not sent: put what authorizes into its path or query")
    if len(url) > MOST_ADDRESS_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"is longer than {MOST_ADDRESS_CHARACTERS} characters, or holds what no address has")
    return url


def keys_of(secrets: Sequence[str]) -> list[bytes]:
    """Return the keys of JOBQ_WEBHOOK_SECRET; raises ConfigurationError, which shows none of them."""
    keys: list[bytes] = []
    for secret in secrets:
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if len(key) < _LEAST_KEY_BYTES:
            raise ConfigurationError(
                f"JOBQ_WEBHOOK_SECRET: {_PREFIX} and the base64 of {_LEAST_KEY_BYTES} bytes or more; make one with"
                f" `echo {_PREFIX}$(openssl rand -base64 24)`"
            )
        keys.append(key)
    return keys


def request(
    id_: str, data: Mapping[str, Any], finished: float, keys: Sequence[bytes], now: float
) -> tuple[dict[str, str], str]:
    """Return the headers and the body of a notice.

    Args:
        id_: the same at each try, and of no other notice, so that who receives it can drop a repetition.
        data: the facts.
        finished: since when they are so, wall time in seconds since the epoch; as the next one.
        keys: to sign with, each; none = it goes unsigned.
        now: when it is sent.
    """
    import hashlib  # noqa: PLC0415 - every push imports this module
    import hmac  # noqa: PLC0415 - as above

    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(finished))
    body = json.dumps({"type": "batch.finished", "timestamp": since, "data": data})
    headers = {"content-type": "application/json", "webhook-id": id_, "webhook-timestamp": str(int(now))}
    if keys:
        text = f"{id_}.{int(now)}.{body}".encode()
        signed = (base64.b64encode(hmac.digest(key, text, hashlib.sha256)).decode() for key in keys)
        headers["webhook-signature"] = " ".join(f"v1,{value}" for value in signed)
    return headers, body


def send(url: str, headers: Mapping[str, str], body: str) -> None:
    """Send a notice, once; as the program of a task, which ends with GONE_EXIT where nobody wants it any more.

    Args:
        url: where.
        headers: as `request` gave them.
        body: likewise.
    """
    import http.client  # noqa: PLC0415 - every push imports this module
    import urllib.error  # noqa: PLC0415 - as above
    import urllib.request  # noqa: PLC0415 - as above

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Follow none: what is signed for one place is not sent to another."""

    asked = urllib.request.Request(url, body.encode(), dict(headers), method="POST")  # noqa: S310 - `check_address`
    try:
        with urllib.request.build_opener(NoRedirects).open(asked, timeout=SECONDS) as answer:
            print(f"{urlsplit(url).hostname} answered {answer.status}")  # noqa: T201 - its output is the task's
            return
    except urllib.error.HTTPError as error:
        said, code = f"answered {error.code} {error.reason}", GONE_EXIT if error.code == _GONE else 1
        error.close()
    except (OSError, http.client.HTTPException) as error:  # whose text may hold the address, with what it authorizes
        reason = getattr(error, "reason", error)
        said, code = f"did not answer: {getattr(reason, 'strerror', None) or type(reason).__name__}", 1
    print(f"{urlsplit(url).hostname} {said}", file=sys.stderr)  # noqa: T201 - as above; the rest may be a secret
    sys.exit(code)
