"""The tokens that a service knows: one that was just made is good for all requests that bring it."""

import asyncio
import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from jobq.errors import BackendUnavailable
from jobq.server import tokens
from jobq.server.tokens import TokenBook, TokenRecord, new_token


class Store:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.value = b""
        self.fails = False
        self.answers = asyncio.Event()
        self.readings = 0

    async def document(self, _name: str) -> Any:
        self.readings += 1
        value = self.value
        await self.answers.wait()
        if self.fails:
            raise BackendUnavailable("away")
        return SimpleNamespace(value=value, version=1) if value else None


def _kept(record: TokenRecord) -> bytes:
    return json.dumps({"tokens": [asdict(record)]}).encode()


async def test_requests_that_come_together_wait_for_one_reading() -> None:
    """The second was refused while the first one's reading was under way."""
    store = Store()
    book = TokenBook(store)  # type: ignore[arg-type]  # nothing but the document is read
    store.answers.set()
    assert not await book.is_kept()
    store.answers.clear()
    record, _ = new_token("0123456789ab", "new", ("view",), ("demo",))
    store.value = _kept(record)
    asked = [asyncio.ensure_future(book.record(record.id)) for _ in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(each.done() for each in asked), "one is refused before anybody has looked"
    asked[0].cancel()  # it reads, and its caller goes away
    store.answers.set()
    assert await asyncio.gather(*asked[1:]) == [record] * 2
    assert store.readings == 3, "one before, one that was given up, and one for both"


async def test_one_that_was_made_during_a_reading_is_found() -> None:
    store = Store()
    book = TokenBook(store)  # type: ignore[arg-type]  # nothing but the document is read
    reading = asyncio.ensure_future(book.holder_of("jobq_00_0"))
    while not store.readings:
        await asyncio.sleep(0)
    record, token = new_token("0123456789ab", "new", ("view",), ("demo",))
    store.value = _kept(record)
    again = asyncio.ensure_future(book.read_again())
    await asyncio.sleep(0)
    store.answers.set()
    await again
    assert await reading is None
    assert await book.holder_of(token) == record
    assert store.readings == 2


async def test_nobody_is_refused_or_let_in_where_nobody_can_say() -> None:
    store = Store()
    store.fails = True
    book = TokenBook(store)  # type: ignore[arg-type]  # nothing but the document is read
    asked = [asyncio.ensure_future(book.holder_of("jobq_00_0")) for _ in range(3)]
    await asyncio.sleep(0)
    store.answers.set()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in found] == [BackendUnavailable] * 3
    assert store.readings <= 2, "each waits for one of its own, one after the other"


async def test_a_reading_that_takes_long_holds_up_nobody_who_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a store of tokens that hangs would hold up the renewals of all that runs, for two readings each."""
    monkeypatch.setattr(tokens, "_FRESH_SECONDS", 0.05)
    store = Store()
    record, token = new_token("0123456789ab", "known", ("lease",), ("demo",))
    store.value = _kept(record)
    book = TokenBook(store)  # type: ignore[arg-type]  # nothing but the document is read
    store.answers.set()
    assert await book.holder_of(token) == record
    store.answers.clear()
    stranger = asyncio.ensure_future(book.read_again())
    await asyncio.sleep(0.1)
    async with asyncio.timeout(1.0):
        assert await book.holder_of(token) == record
        assert await book.record(record.id) == record
    store.value = json.dumps({"tokens": []}).encode()
    store.answers.set()
    await stranger
    await asyncio.sleep(0.1)
    assert await book.holder_of(token) is None, "it is read again once the store answers"
