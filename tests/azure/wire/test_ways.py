"""By the command line: proxies, authorities and identities of the environment, and what is imported for a task."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from jobq.errors import PushUnknown
from jobq.task import Task
from jobq_azure.storage.account import Account
from jobq_azure.storage.backend import StorageQueueBackend
from tests.azure.emulator import ACCOUNT, KEY, connection_string
from tests.azure.faults.test_signing_in import certified
from tests.azure.stage import SHORT, Stage
from tests.azure.wire.raw_service import DONE, Cut, answer, serving
from tests.command_line import Ended

_PUSH = ("push", "--no-create", "-c", "true")
_NOWHERE = "no-such-account.invalid"


def _told(result: Ended, code: int, *parts: str) -> None:
    text = result.out + result.err
    assert result.code == code, text
    assert "Traceback" not in text
    assert "Unclosed" not in text
    for part in parts:
        assert part in text


@asynccontextmanager
async def _proxy() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A proxy that keeps what it was asked, and refuses."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 No\r\nx-ms-request-id: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked


async def test_the_proxy_of_the_environment_is_used_and_bypassed(stage: Stage) -> None:
    signed = f"AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=http://{_NOWHERE}/{ACCOUNT}"
    async with _proxy() as (port, asked):
        proxied = {"JOBQ_CONNECTION_STRING": signed, "http_proxy": f"http://user:word@127.0.0.1:{port}"}
        _told(await stage.run(*_PUSH, **proxied), 3)
        assert asked[0].startswith(f"POST http://{_NOWHERE}/{ACCOUNT}/".encode())
        assert b"Proxy-Authorization: Basic dXNlcjp3b3Jk" in asked[0]
        _told(await stage.run(*_PUSH, **proxied, no_proxy=".invalid"), 75, "no such host")
        assert len(asked) == 1


async def test_through_a_tunnel_the_proxy_sees_nothing(stage: Stage) -> None:
    signed = f"AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=https://{_NOWHERE}/{ACCOUNT}"
    async with _proxy() as (port, asked):
        tunnelled = {"JOBQ_CONNECTION_STRING": signed, "HTTPS_PROXY": f"http://127.0.0.1:{port}"}
        _told(await stage.run(*_PUSH, **tunnelled), 75, "the proxy refuses (403); HTTPS_PROXY names it")
        assert asked[0].startswith(f"CONNECT {_NOWHERE}:443".encode())
        assert b"SharedKey" not in asked[0]


async def test_an_authority_of_ones_own(stage: Stage, tmp_path: Path) -> None:
    certificate, key = certified(tmp_path)
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(certificate, key)
    async with serving(DONE["put"], tls=theirs) as service:
        where = f"QueueEndpoint=https://127.0.0.1:{service.port}/{ACCOUNT}"
        signed = {"JOBQ_CONNECTION_STRING": f"AccountName={ACCOUNT};AccountKey={KEY};{where}"}
        _told(await stage.run(*_PUSH, **signed), 75, "cannot connect")
        assert service.asked == []
        _told(await stage.run(*_PUSH, **signed, SSL_CERT_FILE=str(certificate)), 0)
        assert len(service.asked) == 1


async def test_no_identity_is_told_once(stage: Stage) -> None:
    nothing = {"JOBQ_CONNECTION_STRING": "", "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
    for command in (_PUSH, ("worker",)):
        result = await stage.run(*command, **SHORT, **nothing)
        _told(result, 3, stage.spec, "no credential of Azure is at hand", "az login")
        assert result.err.count("no credential of Azure") == 1


async def test_an_identity_service_that_is_away_is_told(stage: Stage) -> None:
    names = dict.fromkeys(("AZURE_TENANT_ID", "AZURE_CLIENT_ID"), "11111111-1111-1111-1111-111111111111")
    signs_in = {"JOBQ_CONNECTION_STRING": "", "AZURE_CLIENT_SECRET": "canary~", **names}
    result = await stage.run(*_PUSH, **signs_in, AZURE_AUTHORITY_HOST="https://127.0.0.1:1")
    _told(result, 75, "the identity service cannot be reached")
    assert "canary" not in result.err


_TASK = """
import asyncio, sys
from datetime import timedelta
from jobq.settings import Settings
from jobq.settlement import Complete, Requeue
from jobq.spec import resolve
from jobq.task import Task
from jobq.testing.harness import DONE

async def main() -> None:
    async with resolve(sys.argv[1], Settings(connection_string=sys.argv[2])) as queue:
        await queue.prepare()
        await queue.push([Task.new(command="true")])
        for _ in range(2):
            (delivery,) = await queue.receive(1, timedelta(seconds=30), timedelta(0))
            await delivery.renew(timedelta(seconds=30))
            await delivery.checkpoint("half")
            if _:
                await delivery.settle(Complete(DONE))
            else:
                await delivery.settle(Requeue(delivery.task.counters, timedelta(0)))
        assert (await queue.stats()).total == 0
        before = sorted(name for name in sys.modules if name.split(".")[0] in ("azure", "requests", "msal"))
        await queue.clear()
        print(before, "azure.storage.queue" in sys.modules)

asyncio.run(main())
"""


async def test_a_task_needs_no_sdk(stage: Stage) -> None:
    """Its import takes a third of a push; what clears a queue has it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _TASK, stage.spec, stage.azurite.connection_string), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert (process.returncode, out.decode().strip()) == (0, "[] True")


@pytest.mark.parametrize(
    "said",
    [answer(201, b"<QueueMessagesList>"), answer(201, b"Sign in"), answer(200), Cut(answer(201, b"<Qu", length=500))],
    ids=["unclosed", "a page", "another status", "cut"],
)
async def test_a_push_whose_answer_cannot_be_read_is_in_doubt(said: bytes | Cut) -> None:
    """S8: it was told as refused, by the SDK's word for a body that is no XML; who pushed again had it twice."""
    task = Task.new(command="true")
    async with serving(said) as service:
        account = Account(ACCOUNT, connection_string(service.port), "")
        async with StorageQueueBackend(account, "queue", timedelta(seconds=1)) as backend:
            with pytest.raises(PushUnknown) as caught:
                await backend.push([task])
        assert caught.value.ids == (task.id,)
        assert len(service.asked) == 1
