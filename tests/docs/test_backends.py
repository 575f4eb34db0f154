"""The backend that docs/backends.md shows passes the conformance suite, as it stands there."""

import uuid
from typing import Any, Final

import pytest

from jobq.backend import Backend
from jobq.task import Task
from jobq.testing import conformance
from jobq.testing.clock import VirtualClock
from tests.docs.runner import blocks_of

_EXAMPLE: Final = next(block.text for block in blocks_of("docs/backends.md") if "class MyBackend" in block.text)
_NAMES: Final[dict[str, Any]] = {"__name__": "example"}
exec(compile(_EXAMPLE, "docs/backends.md", "exec"), _NAMES)


def _harness() -> conformance.Harness:
    service: dict[str, list[Any]] = {}
    clock = VirtualClock()

    def connect(queue: str) -> Backend:
        backend: Backend = _NAMES["MyBackend"](service, queue, clock)
        return backend

    async def inject(queue: str, body: bytes) -> str:
        service[queue].append(_NAMES["Message"](uuid.uuid4().hex, body))
        return str(service[queue][-1].id)

    return conformance.Harness(connect=connect, clock=clock, inject=inject)


@pytest.mark.parametrize("case", conformance.cases(), ids=str)
async def test_the_whole_backend_keeps_the_protocol(case: conformance.Case) -> None:
    skipped = await conformance.run_case(case, _harness())
    if skipped is not None:
        pytest.skip(f"not {skipped.missing}")


async def test_it_is_a_backend() -> None:
    async with _harness().connect("q") as backend:
        assert isinstance(backend, Backend)
        await backend.create()
        assert await backend.push([task := Task.new(command="true")]) == [task.id]
