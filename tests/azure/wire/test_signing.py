"""What signs our own requests: keys as the SDK would sign, signatures as they were given, tokens and their refusal."""

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.storage.queue import AccountSasPermissions, ResourceTypes, generate_account_sas
from azure.storage.queue._shared.authentication import SharedKeyCredentialPolicy

from jobq.errors import AccessDenied, BackendUnavailable, ConfigurationError
from jobq_azure.common.http_session import new_session
from jobq_azure.common.storage_requests import StorageRequests
from jobq_azure.common.storage_signing import Signing, StorageService, shared_key
from jobq_azure.storage.account import Account
from jobq_azure.storage.queue_client import StorageQueueClient
from tests.azure.emulator import ACCOUNT, KEY, connection_string
from tests.azure.faults.test_signing_in import certified
from tests.azure.stage import Stage
from tests.azure.wire.raw_service import DONE, RECEIPT, Asked, RawService, answer, refusal, serving

_CHALLENGE = (
    "Bearer authorization_uri=https://login.microsoftonline.com/72f988bf-86f1-41af-91ab-2d7cd011db47/oauth2/authorize"
    " resource_id={resource}"
)
_LATER = 2**31


async def _ask_all(wire: StorageQueueClient) -> None:
    await wire.put("a & b", 7)
    await wire.get(5, 30)
    await wire.update("the id/../1", RECEIPT, 30)
    await wire.update("the-id", RECEIPT, 0, "text")
    await wire.delete("the-id", RECEIPT)
    assert await wire.count() == 7


def _in_order() -> list[bytes]:
    return [DONE[verb] for verb in ("put", "get", "update", "update", "delete", "count")]


def _sdks_signature(asked: Asked, key: str) -> str:
    """Sign a request that was seen at the wire as the SDK does; the policy is its own."""
    headers = {name: value for name, value in asked.headers.items() if name != "authorization"}
    request = SimpleNamespace(
        http_request=SimpleNamespace(
            method=asked.method, url=f"http://x{asked.path}?{asked.raw_query}", query=asked.query, headers=headers
        ),
        context=SimpleNamespace(transport=None),
    )
    sign: Any = SharedKeyCredentialPolicy
    sign(ACCOUNT, key).on_request(request)
    return str(headers["Authorization"])


@pytest.mark.parametrize("path", ["", f"/{ACCOUNT}", "/some/place"])
async def test_a_key_signs_as_the_sdk_does(path: str) -> None:
    async with serving(*_in_order()) as service:
        signed = f"AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=http://127.0.0.1:{service.port}{path}/"
        async with Account(ACCOUNT, signed, "") as account:
            await _ask_all(account.wire("queue"))
    assert [asked.headers["authorization"] for asked in service.asked] == [
        _sdks_signature(asked, KEY) for asked in service.asked
    ]
    assert {asked.path.partition("/queue")[0] for asked in service.asked} == {path}
    assert service.connections == 1, "a connection is kept"


async def test_what_a_request_says() -> None:
    """The names of the reference, a pinned version, and nothing that was not meant."""
    async with serving(*_in_order()) as service, Account(ACCOUNT, connection_string(service.port), "") as account:
        await _ask_all(account.wire("queue"))
    put, get, renewed, updated, deleted, counted = service.asked
    messages = f"/{ACCOUNT}/queue/messages"
    assert (put.method, put.path, put.query) == ("POST", messages, {"visibilitytimeout": "7", "messagettl": "-1"})
    assert (get.method, get.path, get.query) == ("GET", messages, {"numofmessages": "5", "visibilitytimeout": "30"})
    assert (renewed.method, renewed.path) == ("PUT", f"{messages}/the%20id%2F..%2F1")
    assert renewed.query == {"popreceipt": RECEIPT, "visibilitytimeout": "30"}
    assert "+" not in renewed.raw_query, "a receipt's plus would be read as a blank"
    assert updated.query == {"popreceipt": RECEIPT, "visibilitytimeout": "0"}
    assert (deleted.method, deleted.path, deleted.query) == ("DELETE", f"{messages}/the-id", {"popreceipt": RECEIPT})
    assert (counted.method, counted.path, counted.query) == ("GET", f"/{ACCOUNT}/queue", {"comp": "metadata"})
    assert [asked.headers.get("content-type") for asked in service.asked] == [
        "application/xml",
        None,
        None,
        "application/xml",
        None,
        None,
    ]
    assert [bool(asked.body) for asked in service.asked] == [True, False, False, True, False, False]
    for asked in service.asked:
        assert asked.headers["x-ms-version"] == "2019-12-12"
        assert asked.headers["user-agent"].startswith("jobq/")
        assert asked.headers["accept-encoding"] == "identity"
        assert abs(parsedate_to_datetime(asked.headers["x-ms-date"]) - datetime.now(UTC)) < timedelta(minutes=1)
    assert not [asked for asked in service.asked if "cookie" in asked.headers]


async def test_a_signature_is_sent_as_it_was_given() -> None:
    given = "sv=2021-08-06&sig=a%2Bb%3D%3D&se=2030-01-01T00%3A00%3A00Z"
    async with serving(*_in_order()) as service:
        signed = f"QueueEndpoint=http://127.0.0.1:{service.port};SharedAccessSignature=?{given}"
        async with Account(ACCOUNT, signed, "") as account:
            await _ask_all(account.wire("queue"))
    assert all(asked.raw_query.endswith(f"&{given}") for asked in service.asked)
    assert not [asked for asked in service.asked if "authorization" in asked.headers]


async def test_the_emulator_takes_keys_and_signatures(stage: Stage) -> None:
    may = AccountSasPermissions(read=True, add=True, update=True, process=True, delete=True)
    ends = datetime.now(UTC) + timedelta(hours=1)
    signature = generate_account_sas(ACCOUNT, KEY, ResourceTypes(object=True, container=True), may, ends)
    where = f"QueueEndpoint=http://127.0.0.1:{stage.azurite.port}/{ACCOUNT}"
    for signed in (f"{where};SharedAccessSignature={signature}", f"{where};AccountName={ACCOUNT};AccountKey={KEY}"):
        async with Account(ACCOUNT, signed, "") as account:
            wire = account.wire(stage.queue)
            await wire.put("text")
            (found,) = await wire.get(1, 30)
            receipt = await wire.update(found.id, found.receipt, 30, "more")
            await wire.delete(found.id, receipt)
    wrong = base64.b64encode(b"wrong").decode()
    async with Account(ACCOUNT, f"{where};AccountName={ACCOUNT};AccountKey={wrong}", "") as account:
        with pytest.raises(AccessDenied) as caught:
            await account.wire(stage.queue).put("text")
        assert wrong not in str(caught.value)


class _Identity:
    """Gives tokens, or fails as it is told."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.ends = _LATER

    async def get_token(self, *scopes: str, **more: Any) -> AccessToken:
        assert scopes == ("https://storage.azure.com/.default",), "a token for somebody else"
        self.asked.append(more)
        if self.error is not None:
            raise self.error
        return AccessToken(f"token-{len(self.asked)}-canary", self.ends)

    async def close(self) -> None:
        pass


@asynccontextmanager
async def _identified(folder: Path, *answers: bytes) -> AsyncIterator[tuple[RawService, StorageQueueClient, _Identity]]:
    """A queue behind TLS, and an identity that signs in."""
    certificate, key = certified(folder)
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(certificate, key)
    session = await new_session()
    identity = _Identity()
    async with serving(*answers, tls=theirs) as service:
        url = f"https://127.0.0.1:{service.port}"
        signing = Signing(
            StorageService(account="account", url=url),
            key_scheme=shared_key,
            version="2019-12-12",
            identity=lambda: identity,
            place="account/queue",
            seconds=5.0,
        )
        requests = StorageRequests(session, signing, place="account/queue", timeout=aiohttp.ClientTimeout(total=5))
        wire = StorageQueueClient(requests, object, "queue", "account/queue")  # type: ignore[arg-type] # not asked
        try:
            ours = ssl.create_default_context(cafile=str(certificate))
            session.connector._ssl = ours  # type: ignore[union-attr] # as SSL_CERT_FILE would
            yield service, wire, identity
        finally:
            await signing.aclose()
            await session.close()


def _tokens(service: RawService) -> list[str]:
    return [asked.headers["authorization"] for asked in service.asked]


async def test_a_token_signs_and_is_kept(tmp_path: Path) -> None:
    async with _identified(tmp_path, *_in_order()) as (service, wire, identity):
        await _ask_all(wire)
    assert _tokens(service) == ["Bearer token-1-canary"] * 6
    assert identity.asked == [{}]


async def test_a_token_that_ends_is_replaced_before(tmp_path: Path) -> None:
    async with _identified(tmp_path, DONE["delete"]) as (service, wire, identity):
        identity.ends = 0
        await wire.delete("the-id", RECEIPT)
        await wire.delete("the-id", RECEIPT)
    assert _tokens(service) == ["Bearer token-1-canary", "Bearer token-2-canary"]


@pytest.mark.parametrize("resource", ["https://storage.azure.com", "https://management.azure.com"])
async def test_a_challenge_is_answered_once_with_a_token_of_that_tenant(tmp_path: Path, resource: str) -> None:
    """What is refused has done nothing. The tenant is followed; no token for another resource is asked for."""
    unauthorized = refusal(401, "InvalidAuthenticationInfo", WWW_Authenticate=_CHALLENGE.format(resource=resource))
    async with _identified(tmp_path, unauthorized, DONE["delete"]) as (service, wire, identity):
        await wire.delete("the-id", RECEIPT)
        await wire.delete("the-id", RECEIPT)
        assert _tokens(service) == ["Bearer token-1-canary", *["Bearer token-2-canary"] * 2]
        assert identity.asked == [{}, {"tenant_id": "72f988bf-86f1-41af-91ab-2d7cd011db47"}]
        service.answers = [unauthorized]
        with pytest.raises(AccessDenied) as caught:
            await wire.delete("the-id", RECEIPT)
        assert "canary" not in str(caught.value)
        assert len(service.asked) == 5, "it was asked more than twice"


async def test_a_refusal_without_a_challenge_is_told_and_the_token_forgotten(tmp_path: Path) -> None:
    unauthorized = refusal(401, "InvalidAuthenticationInfo")
    async with _identified(tmp_path, unauthorized, DONE["delete"]) as (service, wire, identity):
        with pytest.raises(AccessDenied):
            await wire.delete("the-id", RECEIPT)
        assert len(service.asked) == 1
        await wire.delete("the-id", RECEIPT)
    assert len(identity.asked) == 2


async def test_a_challenge_by_somebody_between_gets_no_token(tmp_path: Path) -> None:
    challenge = _CHALLENGE.format(resource="https://storage.azure.com")
    foreign = answer(401, is_theirs=False, WWW_Authenticate=challenge)
    async with _identified(tmp_path, foreign) as (service, wire, identity):
        with pytest.raises(Exception, match="not the service's"):
            await wire.delete("the-id", RECEIPT)
    assert (len(service.asked), len(identity.asked)) == (1, 1)


async def test_no_token_is_a_matter_of_configuration_only_at_first(tmp_path: Path) -> None:
    """L4: later it is the identity service that stumbles."""
    async with _identified(tmp_path, DONE["delete"]) as (service, wire, identity):
        identity.error = ClientAuthenticationError("nothing; canary")
        with pytest.raises(AccessDenied, match="az login"):
            await wire.delete("the-id", RECEIPT)
        identity.error, identity.ends = None, 0
        await wire.delete("the-id", RECEIPT)
        identity.error = ClientAuthenticationError("nothing; canary")
        with pytest.raises(BackendUnavailable, match="no token") as caught:
            await wire.delete("the-id", RECEIPT)
    assert "canary" not in str(caught.value)
    assert len(service.asked) == 1


async def test_who_waits_for_a_token_gives_up_and_the_next_has_it(tmp_path: Path) -> None:
    """A renewal of a lease gives up in time; the token comes all the same."""
    async with _identified(tmp_path, DONE["delete"]) as (service, wire, identity):
        given, give = identity.get_token, asyncio.Event()

        async def slow(*scopes: str, **more: Any) -> AccessToken:
            await give.wait()
            return await given(*scopes, **more)

        identity.get_token = slow  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await wire.delete("the-id", RECEIPT)
        give.set()
        await wire.delete("the-id", RECEIPT)
    assert (len(service.asked), len(identity.asked)) == (1, 1)


def test_a_token_goes_over_no_open_line() -> None:
    with pytest.raises(ConfigurationError, match="https alone"):
        Signing(
            StorageService(account="account", url="http://account.example"),
            key_scheme=shared_key,
            version="1",
            identity=_Identity,
            place="account/queue",
            seconds=1.0,
        )


def test_nothing_shows_a_secret() -> None:
    service = StorageService(account="account", url="https://x", key=KEY, signature="sig=canary")
    assert not re.search(f"{re.escape(KEY)}|canary", repr(service))
