"""The tokens that a service knows: one that was just made is good for all requests that bring it."""

import asyncio
import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from jobq.server.tokens import TokenBook, new_token


class Store:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.value = b""
        self.answers = asyncio.Event()

    async def document(self, _name: str) -> Any:
        await self.answers.wait()
        return SimpleNamespace(value=self.value, version=1) if self.value else None


async def test_requests_that_come_together_wait_for_one_reading() -> None:
    """The second was refused while the first one's reading was under way."""
    store = Store()
    book = TokenBook(store)  # type: ignore[arg-type]  # nothing but the document is read
    store.answers.set()
    assert not await book.is_kept()
    store.answers.clear()
    record, token = new_token("0123456789ab", "new", ("view",), ("demo",))
    store.value = json.dumps({"tokens": [asdict(record)]}).encode()
    book._tried_at -= 60  # later
    asked = [asyncio.ensure_future(book.holder_of(token)) for _ in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(each.done() for each in asked), "one is refused before anybody has looked"
    store.answers.set()
    assert [found is not None for found in await asyncio.gather(*asked)] == [True] * 3
