"""The bench on which each test of this folder works."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.support import Bench

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]  # processes are found in /proc


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A bench in a short path: that of a socket has 107 bytes."""
    made = Bench(Path(tempfile.mkdtemp(prefix="bb-")))
    try:
        yield made
    finally:
        made.close()
