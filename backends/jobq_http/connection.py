"""One request to the service, and what its answer, or the lack of one, means.

An answer counts only with the service's own header: what a proxy says in its place is no answer. Without one:

    refused      it was never sent, or the service says that nothing was done
    lost         no one can say
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp

from jobq.errors import (
    AccessDenied,
    AnswerLost,
    BackendUnavailable,
    BatchNotFound,
    BatchSealed,
    ConfigurationError,
    ConfirmationDiffers,
    DuplicateTask,
    JobqError,
    LockLost,
    MalformedTask,
    QueueNotFound,
    StoreUnusable,
    Throttled,
)
from jobq.local_service import SHOWS_LISTENERS, is_ours

PORTS: Final = {"http": 80, "https": 443}
_HEADER: Final = "Jobq-Service"
_CAPABILITIES_HEADER: Final = "Jobq-Capabilities"
_VERSION: Final = "1"
_CONNECT_SECONDS: Final = 5.0
_MOST_ANSWER: Final = 256 * 1024 * 1024
_MOST_AT_ONE_GO: Final = 2**20
_OK: Final = frozenset({200, 201, 202})
_NO_TOKEN: Final = 401
_REFUSED: Final = 400


class NoAnswer(Exception):
    """A request was sent, and no one can say what became of it."""


@dataclass(frozen=True)
class Busy409(Exception):
    """The service answers that a name is held; carries its error."""

    error: dict[str, Any]


class HttpConnection:
    """A pool of connections to one service.

    Args:
        url: of the service, without a path of ours.
        token: of the caller; None = none.
        token_file: has the token instead, another one after each start of the service, or is not there.
        proxy: the URL by which it is reached; None = without one.

    Attributes:
        capabilities: what the service can that others cannot, by its last answer that says so; None = there was none.
    """

    capabilities: frozenset[str] | None = None

    def __init__(
        self, url: str, *, token: str | None = None, token_file: Path | None = None, proxy: str | None = None
    ) -> None:
        self.url = url
        self._token = token
        self._token_file = token_file
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    def another(self) -> "HttpConnection":
        """Return a pool of its own to the same service, not yet entered."""
        return HttpConnection(self.url, token=self._token, token_file=self._token_file, proxy=self._proxy)

    async def __aenter__(self) -> Self:
        self._is_closed = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: dict[str, str] | None = None,
        seconds: float,
    ) -> Any:
        """Send a request once, and return the JSON of its answer.

        Args:
            method: of HTTP.
            path: below the service's URL, quoted.
            body: to send as JSON; bytes are JSON already.
            query: parameters.
            seconds: how long the answer may take.

        Raises:
            NoAnswer: it was lost.
            BackendUnavailable: nothing was done.
            JobqError: as the service says.
        """
        session = self._opened()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        if token := self._token_now():
            headers["Authorization"] = f"Bearer {token}"
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        try:
            async with session.request(
                method,
                f"{self.url}{path}",
                params=query,
                # aiohttp warns of bytes this long, since it writes them at one go.
                data=data if data is None or len(data) <= _MOST_AT_ONE_GO else io.BytesIO(data),
                headers=headers,
                timeout=timeout,
                proxy=self._proxy,
                allow_redirects=False,
            ) as response:
                is_ours = response.headers.get(_HEADER, "")
                text = await response.content.read(_MOST_ANSWER) if is_ours else b""
                while is_ours and not response.content.at_eof():
                    text += await response.content.read(_MOST_ANSWER)
                status = response.status
                if is_ours and (status in _OK or status == _REFUSED):
                    self.capabilities = frozenset(response.headers.get(_CAPABILITIES_HEADER, "").split())
        except aiohttp.ClientProxyConnectionError as error:  # never sent
            raise BackendUnavailable(
                f"{self.url} cannot be reached: its proxy does not answer ({_why(error)});"
                f" {urlsplit(self.url).scheme.upper()}_PROXY names it"
            ) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:  # never sent
            raise BackendUnavailable(
                f"{self.url} cannot be reached: {_why(error)}; does `jobq serve` run there, and is its port open to"
                " this machine?"
            ) from None
        except aiohttp.ClientHttpProxyError as error:  # asked for a tunnel: what is meant for the service was not sent
            raise BackendUnavailable(
                f"{self.url} cannot be reached: the proxy refuses ({error.status}); HTTPS_PROXY names it"
            ) from None
        except aiohttp.InvalidURL:
            raise ConfigurationError(f"{self.url} is no URL of a service") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NoAnswer(f"{self.url}: no answer ({_why(error)})") from None
        if status == _NO_TOKEN and is_ours and token != self._token_now():
            raise BackendUnavailable(f"{self.url} was started again meanwhile, with another token")
        return self._read(status, is_ours, text)

    def _token_now(self) -> str | None:
        if self._token_file is None:
            return self._token
        try:
            return self._token_file.read_text("ascii")
        except (FileNotFoundError, PermissionError):  # it wants none, or is another user's: its answer says it
            return None

    def _read(self, status: int, is_ours: str, text: bytes) -> Any:
        if not is_ours:
            raise NoAnswer(f"{self.url}: HTTP {status}, but not from a jobq service")
        if is_ours != _VERSION:
            raise ConfigurationError(f"{self.url} speaks version {is_ours[:20]!a} of the API, this jobq {_VERSION}")
        try:
            value = json.loads(text)
            fault = value["error"] if status not in _OK else {}
            code, message = str(fault.get("code", "")), str(fault.get("message", ""))
        except (ValueError, LookupError, TypeError, AttributeError):
            raise NoAnswer(f"{self.url}: HTTP {status} with an answer that cannot be read") from None
        if status in _OK:
            return value
        if code == "held":
            raise Busy409(fault)
        raise _error_of(self.url, status, code, message)

    async def _check_owner(self, *_: object) -> None:
        """Refuse to connect where this user has served before, and another one listens now, or nobody yet."""
        parts = urlsplit(self.url)
        if self._token_file is None or not self._token_file.exists() or not SHOWS_LISTENERS:
            return
        if not is_ours(parts.hostname or "", parts.port or PORTS[parts.scheme]):
            raise BackendUnavailable(
                f"{self.url} cannot be reached: nobody listens there, or another user of this machine, who is told"
                f" nothing of yours (if you mean that one, give JOBQ_HTTP_TOKEN, or remove {self._token_file})"
            )

    def _opened(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise BackendUnavailable(f"{self.url} is closed")
        if self._session is None:
            headers = {"User-Agent": "jobq", _HEADER: _VERSION}
            # No limit: a heartbeat must not wait for a connection behind claims that wait for tasks.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            trace = aiohttp.TraceConfig()
            if self._token_file is not None:
                trace.on_connection_create_start.append(self._check_owner)
            self._session = aiohttp.ClientSession(connector=connector, headers=headers, trace_configs=[trace])
            # One attempt is one request (1.3 rule 4): aiohttp would send a PUT again over a new connection.
            self._session._retry_connection = False  # noqa: SLF001 - there is no public way; a test at the wire holds it
        return self._session


# By the service's word, to be raised with its message. What is missing is doubt: `unknown`, `internal`, others.
_ERRORS: Final[dict[str, type[JobqError]]] = {
    "lease_gone": LockLost,
    "task_not_found": LockLost,
    "lease_not_found": LockLost,
    "confirmed_otherwise": ConfirmationDiffers,
    "duplicate": DuplicateTask,
    "batch_not_found": BatchNotFound,
    "batch_sealed": BatchSealed,
    "malformed_task": MalformedTask,
    "too_large": MalformedTask,
    "queue_not_found": QueueNotFound,
    "forbidden": AccessDenied,
    "store_unusable": StoreUnusable,
    "store_refuses": StoreUnusable,
    "unavailable": BackendUnavailable,
    "stopping": BackendUnavailable,
    "too_many_requests": Throttled,
    "too_many_connections": BackendUnavailable,
    "too_slow": BackendUnavailable,
    "refused": ConfigurationError,
    "exists": ConfigurationError,
    "malformed_request": ConfigurationError,
    "not_json": ConfigurationError,
    "head_too_large": ConfigurationError,
    "too_many_queues": ConfigurationError,
}
_WITHOUT_URL: Final = (LockLost, MalformedTask, DuplicateTask, BatchNotFound, BatchSealed)  # of a thing, not a place


def check(url: str, answer: dict[str, Any]) -> None:
    """Raise what one of several answers in one says, if that is an error."""
    status = answer.get("status")
    if status not in _OK:
        fault = answer.get("error") or {}
        raise _error_of(url, int(status or 0), str(fault.get("code", "")), str(fault.get("message", "")))


def _error_of(url: str, status: int, code: str, message: str) -> Exception:
    if code == "no_token":
        return AccessDenied(
            f"{url} wants a good token; put it into JOBQ_HTTP_TOKEN. Of a service on this machine its owner's commands"
            " find it by themselves, below the same JOBQ_HOME"
        )
    if code in ("no_such_path", "no_such_method"):
        return ConfigurationError(f"{url} knows no such request: the service is older than this jobq; update it")
    kind = _ERRORS.get(code)
    if kind is None:
        return NoAnswer(f"{url}: HTTP {status}: {message}")
    return kind(message if kind in _WITHOUT_URL else f"{url}: {message}")


def _why(error: BaseException) -> str:
    return type(error).__name__ if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"[:200]


def unavailable(error: NoAnswer) -> JobqError:
    """Return what a lost answer is to a verb that may be repeated at will."""
    return AnswerLost(str(error))
