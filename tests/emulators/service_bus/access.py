"""Who may do what: shared access signatures, made and really verified, and bearer tokens that a test hands out.

Source: learn.microsoft.com/azure/service-bus-messaging/service-bus-sas. Rights are those of the service: Manage
includes Send and Listen.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from jobq.clock import Clock
from tests.emulators.service_bus.errors import Unauthorized

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SAS: Final = "SharedAccessSignature "
_BEARER: Final = "Bearer "


class Right(StrEnum):
    """What a policy may grant."""

    LISTEN = "Listen"
    SEND = "Send"
    MANAGE = "Manage"


ALL_RIGHTS: Final = frozenset(Right)


@dataclass(frozen=True)
class Policy:
    """A shared access policy.

    Attributes:
        key: the secret as it stands in a connection string.
        rights: what its holder may do.
    """

    key: str
    rights: frozenset[Right] = ALL_RIGHTS


@dataclass(frozen=True)
class Claim:
    """What a verified token lets its holder do.

    Attributes:
        path: the entity it is for, with all below; "" = the whole namespace.
        rights: what is allowed.
        expires: seconds since the epoch.
    """

    path: str
    rights: frozenset[Right]
    expires: float

    def allows(self, path: str, right: Right, now: float) -> bool:
        """Return whether this is allowed now."""
        asked = path.strip("/").lower()
        covers = not self.path or asked == self.path or asked.startswith(f"{self.path}/")
        return covers and now < self.expires and (right in self.rights or Right.MANAGE in self.rights)


@dataclass
class Access:
    """The policies of a namespace.

    Attributes:
        clock: its wall decides whether a token has expired.
        policies: by name.
        bearers: bearer tokens that are accepted, each with what it grants: the stand-in for Entra.
    """

    clock: Clock
    policies: Mapping[str, Policy]
    bearers: dict[str, Claim] = field(default_factory=dict)

    def verify(self, token: str) -> Claim:
        """Return what a token grants; raises Unauthorized when it is malformed, forged or expired.

        Args:
            token: `SharedAccessSignature sr=...` or `Bearer ...`.
        """
        if token.startswith(_SAS):
            claim = self._verify_signature(token.removeprefix(_SAS))
        else:
            found = self.bearers.get(token.removeprefix(_BEARER))
            if found is None:
                raise Unauthorized("MalformedToken: this token is unknown.")
            claim = found
        if claim.expires <= self.clock.wall():
            raise Unauthorized("ExpiredToken: the token is expired.")
        return claim

    def _verify_signature(self, fields: str) -> Claim:
        parts = dict(part.split("=", 1) for part in fields.split("&") if "=" in part)
        if missing := {"sr", "sig", "se", "skn"} - set(parts):
            raise Unauthorized(f"MalformedToken: {', '.join(sorted(missing))} missing.")
        policy = self.policies.get(unquote(parts["skn"]))
        if policy is None:
            raise Unauthorized("InvalidSignature: there is no such policy.")
        wanted = _signature(parts["sr"], parts["se"], policy.key)
        if not hmac.compare_digest(wanted.encode(), unquote(parts["sig"]).encode()):
            raise Unauthorized("InvalidSignature: the token has an invalid signature.")
        if not parts["se"].isdecimal():
            raise Unauthorized("MalformedToken: se is no number.")
        resource = urlsplit(unquote(parts["sr"]))
        if resource.hostname not in LOOPBACK:
            raise Unauthorized("InvalidAudience: the token is for another namespace.")
        return Claim(resource.path.strip("/").lower(), policy.rights, float(parts["se"]))


def sign(resource: str, policy: str, key: str, expires: float) -> str:
    """Return a shared access signature.

    Args:
        resource: the URI of the namespace or of the queue.
        policy: name of the policy.
        key: its key.
        expires: seconds since the epoch.
    """
    where, until = quote(resource, safe="").lower(), str(int(expires))
    signature = quote(_signature(where, until, key), safe="")
    return f"{_SAS}sr={where}&sig={signature}&se={until}&skn={quote(policy, safe='')}"


def _signature(resource: str, expires: str, key: str) -> str:
    digest = hmac.new(key.encode(), f"{resource}\n{expires}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()
