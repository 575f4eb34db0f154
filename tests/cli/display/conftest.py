"""What the tests of the live view share."""

from collections.abc import Callable

import pytest

from tests.cli.conftest import Jobq
from tests.cli.terminals import Terminal

Opened = Callable[..., Terminal]
WAIT = "until test -e enough; do sleep 0.05; done"


@pytest.fixture
def opened(jobq: Jobq) -> Opened:
    """Return what opens a terminal with a jobq command line in it."""

    def open_(*arguments: str, env: dict[str, str] | None = None, **more: int) -> Terminal:
        return Terminal(jobq.argv(*arguments), jobq.environment | (env or {}), jobq.folder, **more)

    return open_


def release(jobq: Jobq) -> None:
    (jobq.folder / "enough").touch()
