"""How the conformance suite reaches each backend of this repository; one function per backend."""

from collections.abc import Callable
from datetime import timedelta

from jobq.backend import Backend
from jobq.testing.clock import VirtualClock
from jobq.testing.conformance import Harness
from jobq_memory import MemoryBackend, Router

Wrap = Callable[[Backend], Backend]


def memory(wrap: Wrap = lambda backend: backend, *, max_message_bytes: int | None = None) -> Harness:
    """A router of its own on a virtual clock; `wrap` may break what a handle does."""
    clock = VirtualClock()
    router = Router(clock, max_message_bytes=max_message_bytes)

    async def inject(queue: str, body: bytes) -> str:
        return router.inject(queue, body)

    return Harness(
        connect=lambda queue: wrap(MemoryBackend(router, queue)),
        clock=clock,
        inject=inject,
        case_timeout=timedelta(seconds=20),
    )
