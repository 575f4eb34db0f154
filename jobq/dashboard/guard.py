"""Which requests are answered at all: those to our own name, and changes from our own pages alone (A8)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from jobq.local_service import LOOPBACK
from jobq.server.error_responses import RequestRefused

_OURS: Final = ("", "same-origin", "none")


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What a request is held against.

    Attributes:
        public_url: under which others reach this dashboard, scheme and host; None = this machine alone does.
        is_tls: whether it is spoken to by TLS itself.
    """

    public_url: str | None = None
    is_tls: bool = False

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach it by TLS."""
        return self.is_tls or (self.public_url or "").startswith("https:")

    def cookie_name(self, host: str) -> str:
        """Return the name of the session's cookie; cookies know no ports, so on loopback it has one."""
        port = host.rpartition(":")[2]
        return "__Host-jobq" if self.is_secure else f"jobq-{port if port.isascii() and port.isdigit() else 80}"

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Raise RequestRefused (403) for what no page of ours, and no person, has asked for."""
        host = headers.get("host", "").lower()
        origin = self._origin_of(host)
        if origin is None:
            raise _refused("this dashboard answers to its own name alone; behind a proxy, say it by --public-url")
        site = headers.get("sec-fetch-site", "")
        if method in ("GET", "HEAD"):
            # A link on another site may lead here; its scripts, frames and pictures may not.
            if site not in _OURS and headers.get("sec-fetch-dest") != "document":
                raise _refused("this is for people who follow a link, not for what another page loads")
            return
        if headers.get("origin", "").lower() != origin or site not in _OURS[:2]:
            raise _refused("changes are made by this dashboard's own pages alone")

    def _origin_of(self, host: str) -> str | None:
        """Return our own origin where this is a host of ours."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return None
        if self.public_url is not None and host == urlsplit(self.public_url).netloc.lower():
            return self.public_url.lower()
        # Through a proxy on this machine loopback is a name as good as any: the public one alone counts then.
        if self.public_url is None and name in LOOPBACK:
            return f"{'https' if self.is_tls else 'http'}://{host}"
        return None


def _refused(message: str) -> RequestRefused:
    return RequestRefused(403, "forbidden", message)
