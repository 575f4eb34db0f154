"""Why there is no token: nothing to sign in with, nobody who gives one, or one who refuses (A5)."""

import asyncio
import datetime as dt
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import azure.identity.aio
import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.identity import CredentialUnavailableError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from jobq.errors import AccessDenied, BackendUnavailable
from jobq_azure.common import credentials
from jobq_azure.storage.account import Account
from jobq_azure.storage.backend import StorageQueueBackend
from tests.azure.stage import Stage
from tests.command_line import Ended

pytestmark = pytest.mark.check

_SECRET = "client-secret-canary~"
_SIGNS_IN = {
    "JOBQ_CONNECTION_STRING": "",
    "AZURE_TENANT_ID": "11111111-1111-1111-1111-111111111111",
    "AZURE_CLIENT_ID": "22222222-2222-2222-2222-222222222222",
    "AZURE_CLIENT_SECRET": _SECRET,
}


def certified(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 that signs itself; return its file and its key's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    import ipaddress  # noqa: PLC0415 - for this alone

    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@asynccontextmanager
async def identity_service(folder: Path, status: int, words: str) -> AsyncIterator[dict[str, str]]:
    """Answer every request in the way of the identity service; yield what leads a command line to it."""
    certificate, key = certified(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    body = json.dumps({"error": "invalid_client", "error_description": words}).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield {"AZURE_AUTHORITY_HOST": f"https://127.0.0.1:{port}", "SSL_CERT_FILE": str(certificate)}


def _told(result: Ended, code: int, *parts: str) -> None:
    assert _SECRET not in result.out + result.err, "a secret is told"
    assert "Traceback" not in result.err
    assert "Unclosed" not in result.err
    assert result.code == code, result.err
    for part in parts:
        assert part in result.err


async def testidentity_service_cannot_be_reached(stage: Stage) -> None:
    result = await stage.run("size", **_SIGNS_IN, AZURE_AUTHORITY_HOST="https://127.0.0.1:1")
    _told(result, 75, "the identity service cannot be reached")


async def testidentity_service_refuses_with_its_own_words(stage: Stage, tmp_path: Path) -> None:
    words = f"AADSTS7000215: Invalid client secret {_SECRET} provided. Trace ID: 1-2-3\r\nCorrelation ID: 4"
    async with identity_service(tmp_path, 401, words) as service:
        result = await stage.run("size", **_SIGNS_IN, **service)
    _told(result, 3, "the identity service refuses to sign in: AADSTS7000215: Invalid client secret *** provided.")
    assert "Trace ID" not in result.err


async def testidentity_service_that_fails_is_no_matter_of_configuration(tmp_path: Path, stage: Stage) -> None:
    async with identity_service(tmp_path, 500, "AADSTS90033: A transient error has occurred.") as service:
        result = await stage.run("size", **_SIGNS_IN, **service)
    _told(result, 75, "the identity service has failed (500)")


async def test_no_credential_at_all(stage: Stage) -> None:
    nothing = {"JOBQ_CONNECTION_STRING": "", "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
    _told(await stage.run("size", **nothing), 3, "no credential of Azure is at hand")


class _Link:
    """A link of the chain that fails as it is told."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.closed = 0

    async def get_token(self, *_scopes: str, **_more: Any) -> AccessToken:
        if self.error is not None:
            raise self.error
        return AccessToken("token", 2**31)

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[_Link]:
    """What the real chain consists of, instead of what this machine has."""
    made: list[_Link] = [_Link(CredentialUnavailableError("nothing here")), _Link(None)]

    class Chain(azure.identity.aio.ChainedTokenCredential):
        def __init__(self, **_ways: Any) -> None:
            super().__init__(*made)  # type: ignore[arg-type] # what the chain asks of a link, they do
            chains.append(self)

    chains: list[Chain] = []
    monkeypatch.setattr(credentials, "DefaultAzureCredential", Chain)
    return made


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CredentialUnavailableError("nothing here either"), ClientAuthenticationError),
        (ServiceRequestError("no route; canary"), BackendUnavailable),
        (ValueError("canary"), AccessDenied),
    ],
)
async def test_each_cause_is_told_apart(links: list[_Link], error: Exception, expected: type[Exception]) -> None:
    signing = credentials.Identity("account")
    links[1].error = error
    with pytest.raises(expected) as caught:
        await signing.get_token("scope")
    assert "canary" not in str(caught.value)
    links[1].error = None
    assert (await signing.get_token("scope")).token == "token"


async def test_one_credential_for_queues_and_blobs_and_it_is_closed(links: list[_Link]) -> None:
    account = Account("account", None, "core.example")
    backend = StorageQueueBackend(account, "jobs", dt.timedelta(seconds=1))
    async with backend:
        queues, first = account._signed("queue")
        blobs, second = account._signed("blob")
        assert first is second
        # The suffix is that of the sovereign cloud (JOBQ_ENDPOINT_SUFFIX).
        assert (queues, blobs) == ("https://account.queue.core.example", "https://account.blob.core.example")
        assert (await first.get_token("scope")).token == "token"
    assert [link.closed for link in links] == [1, 1]
