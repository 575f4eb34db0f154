"""What the service's answers, and their absence, mean in jobq's errors.

The transport's own words do not say whether a request was sent: a connection that breaks after it was counts there as
"no request was sent". Only a connection that was never made is known to have carried nothing; all else is `NoAnswer`,
and each caller knows what that means for its verb (S5, S8).
"""

import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiohttp

from jobq.errors import (
    AccessDenied,
    BackendUnavailable,
    ConfigurationError,
    JobqError,
    LockLost,
    MalformedTask,
    QueueNotFound,
    Throttled,
)

if TYPE_CHECKING:
    from azure.core.exceptions import AzureError, HttpResponseError
    from azure.core.pipeline import PipelineResponse

_T = TypeVar("_T")
_BUSY: Final = frozenset({429, 503})
NEVER_CONNECTED: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,  # the proxy refused to connect us
)
# The same loss is answered as either, by whether the service still looks for the message.
_LOST: Final = frozenset({"PopReceiptMismatch", "MessageNotFound"})
_TOO_LARGE: Final = frozenset({"RequestBodyTooLarge", "MessageTooLarge"})


class NoAnswer(Exception):
    """The request may have taken effect or not; the message says how the answer was lost.

    Attributes:
        done: as of a JobqError.
    """

    done: Sequence[str] = ()

    def as_unavailable(self) -> BackendUnavailable:
        """Return what a verb that is safe to repeat raises: there a lost answer is as good as a refusal."""
        error = BackendUnavailable(str(self))
        error.done = self.done
        return error


class Unreadable(NoAnswer):
    """The service, or the SDK, stumbled over the answer itself: another request may fare better."""


class ServiceFailed(NoAnswer):
    """The service answered with a failure of its own: it may have done it all the same."""


_STORAGE_QUEUE: Final = re.compile(r"[a-z0-9]+/[a-z0-9-]+")


class NotSignedIn(AccessDenied):
    """No request was sent, for nobody could sign in: no word of the service on what this identity may do."""


class NoCredential(NotSignedIn):
    """No request was sent: there is nothing to sign in with, or the service that gives tokens gave none."""


class AlreadyThere(Exception):
    """The queue or container that was to be made exists."""


class NoBlob(Exception):
    """There is no blob of this name."""


async def answered(call: Awaitable[_T], place: str) -> _T:
    """Return what a call of the SDK returns.

    Args:
        call: of the SDK.
        place: ACCOUNT/QUEUE, for messages.

    Raises:
        NoAnswer: nobody knows whether it took effect.
        AlreadyThere: a queue or container was to be made that exists.
        NoBlob: there is no such blob.
        LockLost: the receipt is stale.
        BackendUnavailable, QueueNotFound, AccessDenied, ConfigurationError, MalformedTask: it took no effect.
    """
    try:
        return await call
    except (JobqError, NoAnswer):
        raise
    except _NotTheirs as error:
        raise NoAnswer(f"{place}: {error}") from None
    except Exception as error:  # noqa: BLE001 - what the SDK trips over in an answer that is none of the service's
        from azure.core.exceptions import AzureError  # noqa: PLC0415 - 25 ms that our own requests save

        if isinstance(error, AzureError):
            # Without the cause: its text may hold an address with a signature, or a key (A5).
            raise meaning(error, place) from None
        raise Unreadable(f"{place}: the answer cannot be read ({type(error).__name__})") from None


async def certain(call: Awaitable[_T]) -> _T:
    """Return what a verb returns that is safe to repeat: then a lost answer is as good as a refusal."""
    try:
        return await call
    except NoAnswer as error:
        raise error.as_unavailable() from None


def code_of(error: "HttpResponseError") -> str:
    """Return the service's word for an error; the SDK has it as an enumeration for some, as text for others."""
    code = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))


def meaning(error: "AzureError", place: str) -> Exception:
    """Return the error of ours that an error of the SDK means; see `answered`."""
    from azure.core.exceptions import (  # noqa: PLC0415 - as in `answered`
        ClientAuthenticationError,
        DecodeError,
        HttpResponseError,
    )

    if isinstance(error, ClientAuthenticationError) and error.response is None:
        return NoCredential(
            f"{place}: no credential of Azure is at hand: run `az login`, use a managed identity, or set"
            f" JOBQ_CONNECTION_STRING{_not_meant(place)}"
        )
    if isinstance(error, DecodeError):
        return Unreadable(f"{place}: the answer cannot be read")
    if isinstance(error, HttpResponseError) and error.status_code is not None:
        return refusal(error.status_code, code_of(error), place)
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, NEVER_CONNECTED):  # the SDK calls some of them an answer that was lost
        return BackendUnavailable(f"{place}: {why_not_connected(inner)}")
    return NoAnswer(f"{place}: the answer was lost ({type(inner or error).__name__})")


def _not_meant(place: str) -> str:
    """Return what else somebody may have meant by what is no URL, and so a Storage Queue; or nothing."""
    if not _STORAGE_QUEUE.fullmatch(place):
        return ""
    return f"; {place} is a Storage Queue, and a queue in a file would be sqlite://{place}.db/demo"


def why_not_connected(error: Exception, what: str = "account") -> str:
    """Return in plain words why a connection was never made; `what` names whose host it is."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"no such host, {error.host}: is the {what}'s name right, and the network up?"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy refuses ({error.status}); HTTPS_PROXY names it"
    where = f" to {error.host}:{error.port}" if isinstance(error, aiohttp.ClientConnectorError) else ""
    return f"cannot connect{where}; is that the right address, and open to this machine (firewall, proxy)?"


def refusal(status: int, code: str, place: str) -> Exception:  # noqa: PLR0911 - one row a kind
    """Return what a status that is no success means where a queue or its blobs were asked.

    Args:
        status: of HTTP.
        code: the service's word; empty = it said none.
        place: ACCOUNT/QUEUE, for messages.
    """
    if code in _LOST:
        return LockLost(f"the receipt is stale ({status} {code}): the lease ran out, or it was settled or taken")
    if code in {"QueueAlreadyExists", "ContainerAlreadyExists"}:  # the SDK raises the first for a 204 too
        return AlreadyThere(place)
    if code in _TOO_LARGE or status == 413:  # noqa: PLR2004 - Request Entity Too Large
        return MalformedTask("is larger than a Storage Queue takes")
    if status == 404:  # noqa: PLR2004 - Not Found
        return _not_found(code, place)
    if status in {401, 403}:
        return access_denied(code, place, _BLOBS if "(container " in place else _QUEUES)
    if code in {"QueueBeingDeleted", "ContainerBeingDeleted"}:
        return BackendUnavailable(f"{place} is being deleted ({code}); its name is free again in half a minute or more")
    if status in _BUSY or code == "ServerBusy":
        return Throttled(f"{place} is busy ({status} {code})")
    if status >= 500:  # noqa: PLR2004 - OperationTimedOut, InternalError: it may have been done all the same
        return ServiceFailed(f"{place}: the service failed ({status} {code})".replace(" )", ")"))
    return _Refused(f"{place}: the service refused the request ({status} {code})")


def _not_found(code: str, place: str) -> Exception:
    if code == "BlobNotFound":
        return NoBlob(place)
    if code == "ContainerNotFound":
        return QueueNotFound(f"{place}: there is no such container; a push without --no-create makes it")
    if code == "" and "(container " in place:  # of what is said so little, nothing is believed to be gone
        return BackendUnavailable(f"{place}: not found, and the service does not say what")
    if code in {"QueueNotFound", ""}:
        if (main := place.removesuffix("-failed")) != place:
            return QueueNotFound(f"there is no queue {place}; `jobq {main} create` makes it, beside {main}")
        return QueueNotFound(f"there is no queue {place}; make it with: jobq {place} create")
    return ConfigurationError(f"{place} was not found ({code}); is the account one with queues?")


class _Refused(JobqError):
    """A request that the service does not take."""


_BLOBS: Final = (
    "A task too large for a message lies in a blob: who pushes or runs such needs the role"
    " 'Storage Blob Data Contributor'; a new role takes some minutes"
)
# Renewals are updates, which the role 'Message Processor' does not include: it may only get and delete.
_QUEUES: Final = (
    "A worker needs the role 'Storage Queue Data Contributor', as does who makes queues; for a pusher"
    " 'Storage Queue Data Message Sender' will do; a new role takes some minutes"
)


def access_denied(code: str, place: object, needs: str) -> AccessDenied:
    """Return what a storage account means by a refusal; `needs` says who needs which role."""
    if code in {"AuthorizationPermissionMismatch", "InsufficientAccountPermissions"}:
        return AccessDenied(f"{place}: this identity may not do that ({code}). {needs}")
    if code == "AuthorizationFailure":
        why = f"the account refused this ({code}): its firewall keeps this network out, or the key or signature"
        return AccessDenied(f"{place}: {why} does not allow it")
    why = f"the key, token or signature was refused ({code})"
    return AccessDenied(f"{place}: {why}; is it of this account, and is the clock right?")


class _NotTheirs(Exception):
    """Somebody between us and the service has answered."""


def from_the_service(response: "PipelineResponse[Any, Any]") -> None:
    """Let no answer count that the service itself has not given (`foreign_answer`); a hook of the SDK's clients."""
    answer = response.http_response
    if (foreign := foreign_answer(answer.status_code, answer.headers)) is not None:
        raise _NotTheirs(foreign)


def foreign_answer(status: int, headers: Mapping[str, str]) -> str | None:
    """Return what is to be said of an answer that the storage service itself has not given; None = it is the service's.

    A proxy on the way may answer 200 or 204 to anything, and a renewal or a settle would be believed that nobody has
    made (P1, S5); or 404 or 503 to what the service has done, and it would count as not done (S1, S8). The service sets
    `x-ms-request-id` on every answer.

    Args:
        status: of HTTP.
        headers: whose names are found in any case.
    """
    if headers.get("x-ms-request-id"):
        return None
    return f"an answer that is not the service's ({status}): what stands between?"
