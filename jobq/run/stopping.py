"""The two levels of stopping: stop receiving, stop working (DESIGN section 6)."""

import asyncio


class Stopping:
    """What a worker and its attempts have been told; each level includes those before it and never goes back."""

    def __init__(self) -> None:
        self.receiving = asyncio.Event()
        self.working = asyncio.Event()
        self.at_once = asyncio.Event()
        self.cause = ""

    def drain(self, cause: str) -> None:
        """Take nothing new; finish what runs."""
        self.cause = self.cause or cause
        self.receiving.set()

    def stop(self, cause: str) -> None:
        """Take nothing new; end what runs within its grace and give it back."""
        self.drain(cause)
        self.working.set()

    def now(self, cause: str) -> None:
        """As `stop`, without grace."""
        self.stop(cause)
        self.at_once.set()
