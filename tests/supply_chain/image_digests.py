"""Asks the registries for the digests of the images of deploy/Dockerfile, and writes them.

It takes a network that reaches the registries; nothing is written where one of them does not answer.
"""

import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Final, NamedTuple

from .lock import ROOT

DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"
IMAGE: Final = re.compile(
    r"^ARG (?P<argument>[A-Z]+_IMAGE)=(?P<name>[^:@\s]+):(?P<tag>[^@\s]+)(?:@sha256:\S+)?$", re.MULTILINE
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# Lists of the images of several platforms first: the digest of a list is right on each of them.
_INDEXES: Final = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
_MANIFESTS: Final = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
_ACCEPTED: Final = f"{_INDEXES}, {_MANIFESTS}"
_HUB: Final = "registry-1.docker.io"
_SECONDS: Final = 30.0
_UNAUTHORIZED: Final = 401


class Place(NamedTuple):
    """Where an image is kept: the host of a registry, and the repository there."""

    host: str
    repository: str


def place_of(name: str) -> Place:
    """Return where an image of this name is; one without a host is of Docker's own registry."""
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first):
        return Place(first, rest)
    return Place(_HUB, name if rest else f"library/{name}")


def digest(registry: str, repository: str, tag: str) -> str:
    """Return the digest that a tag has now.

    Args:
        registry: its URL.
        repository: of the image.
        tag: of the image.

    Raises:
        OSError: the registry does not answer, or refuses.
        ValueError: what it answers is no digest.
    """
    url = f"{registry}/v2/{repository}/manifests/{tag}"
    try:
        found = _asked(url, {"Accept": _ACCEPTED})
    except urllib.error.HTTPError as refused:
        if refused.code != _UNAUTHORIZED:
            raise
        token = _token(refused.headers.get("WWW-Authenticate", ""))
        found = _asked(url, {"Accept": _ACCEPTED, "Authorization": f"Bearer {token}"})
    if not _DIGEST.fullmatch(found):
        raise ValueError(f"{url} answers without a digest")
    return found


def pinned(text: str, digests: dict[str, str]) -> str:
    """Return a Dockerfile with the digest of each image, by the name of its argument."""
    return IMAGE.sub(
        lambda found: f"ARG {found['argument']}={found['name']}:{found['tag']}@{digests[found['argument']]}", text
    )


def _asked(url: str, headers: dict[str, str]) -> str:
    request = urllib.request.Request(url, method="HEAD", headers=headers)
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        return str(answer.headers.get("Docker-Content-Digest", ""))


def _token(challenge: str) -> str:
    """Return the token that lets anybody read, as the registry says where to get it."""
    said = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    asked = urllib.parse.urlencode({name: said[name] for name in ("service", "scope") if name in said})
    with urllib.request.urlopen(f"{said['realm']}?{asked}", timeout=_SECONDS) as answer:
        found = re.search(rb'"(?:token|access_token)"\s*:\s*"([^"]+)"', answer.read())
    if found is None:
        raise ValueError(f"{said['realm']} gives no token")
    return found[1].decode()


def main() -> int:
    """Write the digests; return the exit code."""
    text, digests = DOCKERFILE.read_text(), {}
    for found in IMAGE.finditer(text):
        host, repository = place_of(found["name"])
        try:
            digests[found["argument"]] = digest(f"https://{host}", repository, found["tag"])
        except (OSError, ValueError) as error:
            print(f"{found['name']}:{found['tag']}: {error}; nothing is written", file=sys.stderr)
            return 1
        print(f"{found['name']}:{found['tag']} is {digests[found['argument']]}")
    DOCKERFILE.write_text(pinned(text, digests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
