"""Each cause its own plain text and exit code, and no secret in any of them (A5)."""

import asyncio
import json
import logging
import math
from datetime import timedelta

import pytest

from jobq.errors import ConfigurationError, InvalidSpec
from jobq.settings import Settings
from jobq.spec import resolve
from jobq_azure.storage.account import Account
from jobq_azure.storage.backend import StorageQueueBackend
from tests.azure.emulator import ACCOUNT, KEY, connection_string
from tests.azure.stage import SHORT, Stage
from tests.command_line import Ended
from tests.support.http_proxy import Strike

pytestmark = pytest.mark.check

_WRONG_KEY = "V1JPTkcta2V5LWNhbmFyeS1XUk9ORy1rZXktY2FuYXJ5LVdST05HLWtleS1jYW5hcnkhISEhISEhISEhISEhISE="
_SIGNATURE = "sv=2021-08-06&ss=q&srt=sco&sp=raup&se=2030-01-01T00:00:00Z&sig=c2lnbmF0dXJlLWNhbmFyeQ%3D%3D"
_SECRETS = (KEY, _WRONG_KEY, "c2lnbmF0dXJlLWNhbmFyeQ", "sig=")


def _told(result: Ended, code: int, *parts: str) -> None:
    text = result.out + result.err
    assert not [secret for secret in _SECRETS if secret in text], "a secret is told"
    assert "Traceback" not in text
    assert result.code == code, text
    for part in parts:
        assert part in text, text


async def test_missing_queue(stage: Stage) -> None:
    place = f"{ACCOUNT}/never-made"
    for command in (("size",), ("worker",), ("push", "--no-create", "-c", "true")):
        result = await stage.run(*command, spec=place, **SHORT)
        _told(result, 4, f"there is no queue {place}; make it with: jobq {place} create")


async def test_push_makes_a_missing_queue_and_create_refuses_an_existing_one(stage: Stage) -> None:
    place = f"{ACCOUNT}/made-by-push-{stage.queue}"
    _told(await stage.run("push", "-c", "true", spec=place), 0)
    _told(await stage.run("create", "--no-exist-ok", spec=place), 3, "exists")
    _told(await stage.run("create", spec=place), 0)


async def test_a_sender_is_told_that_the_queue_is_missing(stage: Stage) -> None:
    stage.proxy.strike(Strike.DENY, "PUT", count=math.inf)
    result = await stage.run("push", "-c", "true", spec=f"{ACCOUNT}/never-made")
    _told(result, 3, "may not do that", "there is no queue")


async def test_an_id_is_refused_where_it_would_not_be_known_again(stage: Stage) -> None:
    _told(await stage.run("push", "--id", "mine", "-c", "true"), 2, "--id")


async def test_wrong_key_and_wrong_signature(stage: Stage) -> None:
    endpoint = f"QueueEndpoint=http://127.0.0.1:{stage.proxy.port}/{ACCOUNT}"
    for signed in (connection_string(stage.proxy.port, _WRONG_KEY), f"{endpoint};SharedAccessSignature={_SIGNATURE}"):
        for command in (("size",), ("worker",), ("push", "-c", "true")):
            result = await stage.run(*command, **{**SHORT, "JOBQ_CONNECTION_STRING": signed})
            _told(result, 3, stage.spec, "refused")


async def test_missing_role(stage: Stage) -> None:
    stage.proxy.strike(Strike.DENY, count=math.inf)
    for command in (("size",), ("worker",), ("push", "-c", "true")):
        _told(await stage.run(*command, **SHORT), 3, "may not do that", "'Storage Queue Data Contributor'")


async def test_a_worker_that_may_not_renew_says_so(stage: Stage) -> None:
    # The role 'Message Processor' gets and deletes; a renewal is an update.
    (task,) = await stage.pushed(command="sleep 60")
    stage.proxy.strike(Strike.DENY, "PUT", count=math.inf)
    worker = await stage.start("worker", **SHORT)
    assert worker.stderr is not None
    async for line in worker.stderr:
        if b"may not do that" in line:
            assert task.id.encode() in line
            return
    raise AssertionError("nothing was told")


async def test_network_is_away(stage: Stage) -> None:
    await stage.proxy.refuse()
    where = f"cannot connect to 127.0.0.1:{stage.proxy.port}; is that the right address, and open to this machine"
    _told(await stage.run("size"), 75, stage.spec, where)
    _told(await stage.run("push", "-c", "true"), 75, stage.spec, "cannot connect")


async def test_unknown_host(stage: Stage) -> None:
    signed = f"AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=https://no-such-account.invalid"
    _told(
        await stage.run("size", JOBQ_CONNECTION_STRING=signed), 75, stage.spec, "no such host, no-such-account.invalid"
    )


async def test_no_credential(stage: Stage) -> None:
    nothing = {"JOBQ_CONNECTION_STRING": "", "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
    _told(await stage.run("size", **nothing), 3, stage.spec, "az login", "JOBQ_CONNECTION_STRING")


async def test_unusable_connection_strings(stage: Stage) -> None:
    _told(await stage.run("size", JOBQ_CONNECTION_STRING=f"AccountName={ACCOUNT};Key={KEY}"), 3, "neither AccountKey")
    other = f"AccountName=another;AccountKey={KEY}"
    _told(await stage.run("size", JOBQ_CONNECTION_STRING=other), 3, "is of account 'another'")
    broken = f"AccountName={ACCOUNT};AccountKey=not/base64!;QueueEndpoint=http://127.0.0.1:{stage.proxy.port}/{ACCOUNT}"
    _told(await stage.run("size", JOBQ_CONNECTION_STRING=broken), 3, "AccountKey")
    _told(await stage.run("size", JOBQ_CONNECTION_STRING="QueueEndpoint=nonsense;AccountKey=AAAA"), 3, "no address")


async def test_a_task_inherits_no_connection_string(stage: Stage) -> None:
    await stage.pushed(command="env > seen")
    both = {"AZURE_STORAGE_CONNECTION_STRING": connection_string(stage.proxy.port), "JOBQ_CONNECTION_STRING": ""}
    result = await stage.run("worker", **{**SHORT, **both})
    assert result.code == 0, result.err
    assert KEY not in (stage.folder / "seen").read_text()


def test_names_are_checked_before_anything_is_sent() -> None:
    for spec, part in (
        ("My_Account/jobs", "storage account"),
        ("account/ab", "3 to 56"),
        ("account/" + 57 * "a", "57 characters.*QUEUE-failed"),
        ("account/a--b", "dashes"),
    ):
        with pytest.raises(InvalidSpec, match=part):
            resolve(spec, Settings())


def test_nothing_shows_a_secret() -> None:
    account = Account(ACCOUNT, connection_string(1), "")
    settings = Settings(connection_string=connection_string(1))
    backend = resolve(f"{ACCOUNT}/jobs", settings)
    for thing in (account, backend):
        assert KEY not in repr(thing) + str(vars(thing).get("name"))
    with pytest.raises(ConfigurationError) as caught:
        Account("other", connection_string(1), "")
    assert KEY not in str(caught.value)


def test_azurite_by_one_switch() -> None:
    backend = resolve(f"{ACCOUNT}/jobs", Settings(azurite=True))
    assert backend.name == "jobs"


def test_azurite_has_one_account() -> None:
    with pytest.raises(ConfigurationError, match=f"JOBQ_AZURITE=1 means the emulator.*write {ACCOUNT}/jobs"):
        resolve("another/jobs", Settings(azurite=True))


@pytest.mark.parametrize(
    ("signed", "part"),
    [
        (f"AccountName={ACCOUNT};AccountKey=;QueueEndpoint=http://127.0.0.1:1/{ACCOUNT}", "neither AccountKey"),
        (f"QueueEndpoint=https://x.test?{_SIGNATURE};SharedAccessSignature={_SIGNATURE}", "QueueEndpoint .* a query"),
        (f"QueueEndpoint=https://x.test/?{_SIGNATURE}", "QueueEndpoint .* a query"),
        (f"BlobEndpoint=https://x.test?{_SIGNATURE};SharedAccessSignature={_SIGNATURE}", "BlobEndpoint .* a query"),
        (f"AccountKey={KEY};QueueEndpoint=https://x.test:99999", "QueueEndpoint .* no address"),
        (f"AccountKey={KEY};QueueEndpoint=https://x.test:abc", "QueueEndpoint .* no address"),
        (f"AccountKey={KEY};QueueEndpoint=https://x.test:0", "QueueEndpoint .* no address"),
        (f"AccountKey={KEY};QueueEndpoint=https://:80", "QueueEndpoint .* no address"),
        (f"AccountKey={KEY};BlobEndpoint=https://x.test:99999", "BlobEndpoint .* no address"),
    ],
)
def test_natural_mistakes_in_a_connection_string(signed: str, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part) as caught:
        Account(ACCOUNT, signed, "core.windows.net")
    assert not [secret for secret in _SECRETS if secret in str(caught.value)]


async def test_a_mistake_leaves_nothing_open(stage: Stage) -> None:
    for signed in (f"AccountName={ACCOUNT};AccountKey=", f"QueueEndpoint=https://x.test?{_SIGNATURE};AccountKey={KEY}"):
        result = await stage.run("size", JOBQ_CONNECTION_STRING=signed)
        _told(result, 3)
        assert "Unclosed" not in result.err


async def test_what_fails_in_the_sdk_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(ACCOUNT, connection_string(1), "")

    def broken(_queue: str) -> None:
        raise ValueError("canary")

    monkeypatch.setattr(account, "wire", broken)
    with pytest.raises(ValueError, match="canary"):
        await StorageQueueBackend(account, "jobs", timedelta(seconds=1)).__aenter__()
    assert account._session is not None
    assert account._session.closed


async def test_netrc_signs_nothing(stage: Stage) -> None:
    netrc = stage.folder / ".netrc"
    netrc.write_text("default login canary password canary\n")
    netrc.chmod(0o600)
    _told(await stage.run("size"), 0)


async def test_proxy_of_the_environment_is_used_and_bypassed(stage: Stage) -> None:
    # The host exists for no resolver: only a proxy can have brought the request to the service.
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 No\r\nx-ms-request-id: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    signed = f"AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=http://no-such-account.invalid/{ACCOUNT}"
    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        proxied = {"JOBQ_CONNECTION_STRING": signed, "http_proxy": f"http://user:word@127.0.0.1:{port}"}
        _told(await stage.run("size", **proxied), 3)
        assert asked[0].startswith(b"GET http://no-such-account.invalid/")
        assert b"Proxy-Authorization: Basic dXNlcjp3b3Jk" in asked[0]
        _told(await stage.run("size", **proxied, no_proxy=".invalid"), 75, "no such host")
        assert len(asked) == 1
        secure = signed.replace("http://", "https://")
        tunnelled = {"JOBQ_CONNECTION_STRING": secure, "HTTPS_PROXY": f"http://127.0.0.1:{port}"}
        await stage.run("size", **tunnelled)
        assert asked[1].startswith(b"CONNECT no-such-account.invalid:443")


def test_suffix_of_a_sovereign_cloud() -> None:
    signed = f"AccountName=account;AccountKey={KEY};EndpointSuffix=core.example"
    by_string = Account("account", signed, "core.windows.net")
    assert by_string._signed("queue")[0] == "https://account.queue.core.example"
    by_setting = Account("account", f"AccountName=account;AccountKey={KEY}", "core.other")
    assert by_setting._signed("blob")[0] == "https://account.blob.core.other"


async def test_the_sdk_is_quiet(stage: Stage) -> None:
    # A5: it logs each request at INFO, and at WARNING what it raises anyway.
    levels = {name: logging.getLogger(name).level for name in ("", "azure")}
    shown: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.append(f"{record.name}: {record.getMessage()}")

    kept = Kept()
    try:
        logging.getLogger().addHandler(kept)
        logging.getLogger().setLevel(logging.DEBUG)
        logging.getLogger("azure").setLevel(logging.NOTSET)
        account = await stage.stack.enter_async_context(Account(ACCOUNT, stage.azurite.connection_string, ""))
        wire = account.wire(stage.queue)
        await wire.clear()
        assert await wire.count() == 0
    finally:
        logging.getLogger().removeHandler(kept)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    assert not [line for line in shown if line.startswith("azure")]


async def test_dead_letters_are_no_tasks(stage: Stage) -> None:
    place = f"{stage.spec}-failed"
    told = f"jobq {stage.spec} dead list"
    _told(await stage.run("worker", spec=place, **SHORT), 3, f"{place} is where {stage.spec} keeps its dead", told)
    _told(await stage.run("push", "-c", "true", spec=place), 3, told)
    missing = f"{ACCOUNT}/never-made-failed"
    _told(await stage.run("peek", spec=missing), 4, f"there is no queue {missing}; `jobq {ACCOUNT}/never-made create`")


async def test_peek_says_that_the_service_shows_no_more(stage: Stage) -> None:
    await stage.pushed(33)
    result = await stage.run("peek", "-n", "100", "--json")
    assert len([json.loads(line) for line in result.out.splitlines()]) == 32
    _told(result, 0, "the first 32 are shown")
    assert "shown" not in (await stage.run("peek", "-n", "32")).err


async def test_nothing_is_asked_for_nobody(stage: Stage) -> None:
    before = len(stage.proxy.requests)
    with pytest.raises(ConfigurationError, match="at least one"):
        await stage.backend.receive(0, None, timedelta(0))
    assert len(stage.proxy.requests) == before


async def test_a_lease_that_the_service_does_not_grant(stage: Stage) -> None:
    result = await stage.run("worker", "--visibility-timeout", "8d")
    _told(result, 3, "a lease of 192h", "at most 168h", "--visibility-timeout")
