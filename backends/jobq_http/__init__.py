"""The jobq service over HTTP: `http://host:8000/myqueue`, `https://host/myqueue`.

The token is JOBQ_HTTP_TOKEN; without it, of a service on this machine, the one that it has left its owner. Any other
is reached by the proxy that HTTP_PROXY or HTTPS_PROXY names, unless NO_PROXY has its host.
"""

import re
from typing import Final
from urllib.parse import urlsplit

from jobq.errors import ConfigurationError, InvalidSpec
from jobq.local_service import is_loopback, token_file
from jobq.settings import Settings
from jobq.spec import QueueSpec
from jobq_http.backend import HttpBackend
from jobq_http.connection import PORTS, HttpConnection
from jobq_http.proxy import proxy_for

__all__ = ["HttpBackend", "HttpConnection", "connect"]

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")


def connect(spec: QueueSpec, settings: Settings) -> HttpBackend:
    """Return the backend for `http://HOST[:PORT]/QUEUE`; a path before the queue is the proxy's.

    Raises:
        InvalidSpec: it names no host, or holds a user, a token or a query.
        ConfigurationError: JOBQ_HTTP_TOKEN is none, or the address of the proxy is none.
    """
    try:
        parts = urlsplit(f"{spec.scheme}://{spec.location}")
        host = parts.hostname
        port = parts.port or PORTS[spec.scheme]
    except ValueError:
        raise InvalidSpec("this spec names no host and port; write http://HOST:PORT/QUEUE") from None
    if parts.username is not None or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidSpec(
            "a user, token or query does not belong into the spec of a service: it shows in `ps` and in logs; put the"
            " token into JOBQ_HTTP_TOKEN"
        )
    if not host:
        raise InvalidSpec(f"this spec names no host; write {spec.scheme}://HOST:PORT/{spec.queue}")
    token = settings.http_token
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigurationError("JOBQ_HTTP_TOKEN holds what no token has: a space, a quote or the like")
    url = f"{spec.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    is_here = is_loopback(host)
    file = token_file(settings, host, port) if token is None and is_here else None
    proxy = None if is_here else proxy_for(spec.scheme, parts.netloc)
    return HttpBackend(HttpConnection(url, token=token, token_file=file, proxy=proxy), spec.queue)
