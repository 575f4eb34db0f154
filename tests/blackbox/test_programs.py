"""Programs that each showed a fault of the past, run as they are: each ends with 0 where its fault is mended.

Left out, for they take minutes: a view's token that stalls the service, and notes that break the dashboard. Left out,
for it needs a browser: columns on a phone. Those that import jobq or need Azurite are no part of this pack.
"""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blackbox.support import JOBQ, Bench

pytestmark = pytest.mark.check

PROGRAMS = sorted(each for each in Path(__file__).with_name("programs").iterdir() if each.suffix in {".sh", ".py"})
CANNOT_BE_TRIED = 2
LONG = {
    "batch-cancel-expired",
    "checkpoint-that-cannot-be-restored",
    "imds-429",
    "suspend-fails-local-jobs",
    "tls-handshakes-unbounded",
    "worker-without-temp-is-a-black-hole",
}


@pytest.mark.parametrize(
    "program",
    [pytest.param(each, marks=[pytest.mark.night] if each.stem in LONG else [], id=each.stem) for each in PROGRAMS],
)
def test_a_fault_of_the_past_is_mended(bench: Bench, program: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = bench.environment | {"JOBQ": str(JOBQ), "PORT": port}
    command = [sys.executable if program.suffix == ".py" else "bash", str(program)]
    output = bench.work / "output"
    with output.open("wb") as file:
        done = subprocess.run(
            command,
            cwd=bench.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            timeout=90,
            check=False,
        )
    if done.returncode == CANNOT_BE_TRIED:
        pytest.skip(f"{program.name} says that it cannot be tried here: {output.read_text()}")
    assert done.returncode == 0, output.read_text()
