"""What asks for digests, against a registry of our own, which wants a token as the public ones do."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from .image_digests import DOCKERFILE, IMAGE, digest, pinned, place_of

pytestmark = pytest.mark.check

DIGEST = f"sha256:{'0a' * 32}"


class Registry(BaseHTTPRequestHandler):
    """Answers for `library/python:3.13`, to who has its token."""

    def do_HEAD(self) -> None:
        url = f"http://{self.headers['Host']}/token"
        if self.headers.get("Authorization") != "Bearer to-read":
            self.send_response(401)
            scope = "repository:library/python:pull"
            self.send_header("WWW-Authenticate", f'Bearer realm="{url}",service="registry",scope="{scope}"')
        elif self.path == "/v2/library/python/manifests/3.13" and "image.index" in self.headers["Accept"]:
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        elif self.path.endswith("/odd"):
            self.send_response(200)
        else:
            self.send_response(404)
        self.end_headers()

    def do_GET(self) -> None:
        is_asked = self.path == "/token?service=registry&scope=repository%3Alibrary%2Fpython%3Apull"
        body = json.dumps({"token": "to-read"} if is_asked else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_tag_has_the_digest_that_its_registry_says(registry: str) -> None:
    assert digest(registry, "library/python", "3.13") == DIGEST
    with pytest.raises(OSError, match="404"):
        digest(registry, "library/python", "none")
    with pytest.raises(ValueError, match="without a digest"):
        digest(registry, "library/python", "odd")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("python", ("registry-1.docker.io", "library/python")),
        ("mine/python", ("registry-1.docker.io", "mine/python")),
        ("ghcr.io/astral-sh/uv", ("ghcr.io", "astral-sh/uv")),
    ],
)
def test_where_an_image_is(name: str, place: tuple[str, str]) -> None:
    assert place_of(name) == place


def test_each_image_of_the_dockerfile_is_pinned_and_pinned_anew() -> None:
    text = DOCKERFILE.read_text()
    arguments = [found["argument"] for found in IMAGE.finditer(text)]
    froms = [line.split()[1] for line in text.splitlines() if line.startswith("FROM")]
    assert froms == [f"${{{argument}}}" for argument in arguments]
    once = pinned(text, dict.fromkeys(arguments, DIGEST))
    assert once.count(f"@{DIGEST}\n") == len(arguments) == 3
    other = f"sha256:{'1b' * 32}"
    assert pinned(once, dict.fromkeys(arguments, other)) == once.replace(DIGEST, other)
