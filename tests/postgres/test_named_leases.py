"""Named leases on PostgreSQL with answers that never arrive: a repetition is answered like the first (S4)."""

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from jobq.errors import SettlementUnknown
from jobq.lease.store import Grant, LeaseState, Request
from jobq_postgres import PostgresBackend
from tests.postgres.server import Database
from tests.support.tcp_proxy import TcpProxy, TcpStrike

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TTL = timedelta(seconds=30)
STATES = {"confirm": LeaseState.CONFIRMED, "release": LeaseState.RELEASED}


@pytest.mark.parametrize("verb", ["acquire", "renew", "save", "confirm", "release"])
@pytest.mark.parametrize("lost", [TcpStrike.LOSE_ANSWER, TcpStrike.BREAK])
async def test_a_verb_without_an_answer_is_unknown_and_its_repeat_is_exact(
    queue: PostgresBackend, database: Database, proxy: TcpProxy, verb: str, lost: TcpStrike
) -> None:
    request = Request(name="one", key=str(uuid.uuid4()), holder="a holder", ttl=TTL)
    async with PostgresBackend(database.through(proxy.port).server(), "q") as far:
        leases = far.leases
        await leases.read("one")  # connects
        granted: list[Grant] = []
        if verb != "acquire":
            answer = await leases.acquire(request)
            assert isinstance(answer, Grant)
            granted.append(answer)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "acquire": lambda: leases.acquire(request),
            "renew": lambda: leases.renew(granted[0], TTL),
            "save": lambda: leases.save(granted[0], "half \0", 1),
            "confirm": lambda: leases.confirm("one", 1, "seat 5"),
            "release": lambda: leases.release("one", 1),
        }
        proxy.strike(lost, lambda sent: b"one" in sent)
        with pytest.raises(SettlementUnknown):
            await calls[verb]()
        assert proxy.struck == 1
        answer = await calls[verb]()
        if verb == "acquire":
            assert isinstance(answer, Grant)
            assert answer.token == 1, "granted a second time"
        record = await queue.leases.read("one")
        assert record is not None
        assert (record.token, record.state) == (1, STATES.get(verb, LeaseState.ACTIVE))
        assert record.cursor == ("half \0" if verb == "save" else None)
