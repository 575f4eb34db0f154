"""The deletion cost of a pod, against a TLS server that stands for the API server of Kubernetes: none can run here."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from jobq.errors import ConfigurationError
from jobq.events import Events
from jobq.telemetry.pod_deletion_cost import PodCost
from jobq.telemetry.worker_state import WorkerState

SECONDS = 15.0


class ApiServer:
    """Takes patches of one pod from the holder of the token.

    Attributes:
        patches: the costs in order.
        status: what it answers.
        token: what it accepts.
    """

    def __init__(self) -> None:
        self.patches: list[str] = []
        self.status = 200
        self.token = "first"
        self.refused = 0
        self.changed = asyncio.Event()

    async def patch(self, request: web.Request) -> web.Response:
        self.changed.set()
        if request.headers["Authorization"] != f"Bearer {self.token}" or self.status != 200:
            self.refused += 1
            return web.json_response({"message": "pods is forbidden"}, status=403)
        assert request.content_type == "application/merge-patch+json"
        body: dict[str, Any] = await request.json()
        self.patches.append(body["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"])
        return web.json_response({})

    async def until(self, shown: list[str]) -> None:
        async with asyncio.timeout(SECONDS):
            while self.patches[-len(shown) :] != shown:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def in_a_pod(folder: Path) -> AsyncIterator[tuple[ApiServer, dict[str, str]]]:
    """Serve, and lay out a service account as a pod finds it; yields the server and the pod's environment."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "api server of a test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key").write_bytes(private)
    (folder / "namespace").write_text("science\n")
    (folder / "token").write_text("first\n")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    server = ApiServer()
    app = web.Application()
    app.router.add_patch("/api/v1/namespaces/science/pods/worker-1", server.patch)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port), "HOSTNAME": "worker-1"}
    try:
        yield server, environment
    finally:
        await runner.cleanup()


@asynccontextmanager
async def patching(cost: PodCost) -> AsyncIterator[None]:
    task = asyncio.create_task(cost.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_tells_how_many_tasks_run_and_again_after_changes(tmp_path: Path) -> None:
    state = WorkerState()
    async with in_a_pod(tmp_path) as (server, environment):
        cost = PodCost(state, environment, tmp_path, pause=0.01)
        events = Events(state.on_event, cost.on_event)
        async with patching(cost):
            await server.until(["0"])
            events.emit("task.started", task_id="a")
            events.emit("task.started", task_id="b")
            await server.until(["0", "2"])
            events.emit("task.succeeded", task_id="a")
            await server.until(["2", "1"])


async def test_a_refusal_is_told_once_and_asked_again_and_a_new_token_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = WorkerState()
    async with in_a_pod(tmp_path) as (server, environment):
        server.token = "second"
        async with patching(PodCost(state, environment, tmp_path, pause=0.01)):
            async with asyncio.timeout(SECONDS):
                while server.refused < 3:
                    server.changed.clear()
                    await server.changed.wait()
            (tmp_path / "token").write_text("second")
            await server.until(["0"])
    assert caplog.text.count("cannot patch the deletion cost") == 1
    assert "pods is forbidden" in caplog.text


async def test_a_server_with_another_certificate_gets_no_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    async with in_a_pod(tmp_path / "one") as (server, environment), in_a_pod(tmp_path / "other"):
        cost = PodCost(WorkerState(), environment, tmp_path / "other", pause=0.01)
        async with patching(cost), asyncio.timeout(SECONDS):
            while "cannot patch" not in caplog.text:
                await asyncio.sleep(0.01)
    assert not server.refused
    assert not server.patches


def test_outside_of_a_pod_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="in a pod of Kubernetes"):
        PodCost(WorkerState(), {}, tmp_path)
