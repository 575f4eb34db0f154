"""A pause is seen at once by the process that has made it."""

from jobq.pausing import Pause
from jobq_postgres import PostgresBackend
from tests.postgres.support import LEASE, NOW, take, tasks


async def test_who_has_paused_claims_nothing_though_no_notification_has_come(queue: PostgresBackend) -> None:
    """On a busy server the connection that claims hears of it later than the pause is answered."""
    await queue.push(tasks(2))
    await take(queue)
    await (await queue._linked())._claims.submit(lambda connection: connection.execute("UNLISTEN *"), seconds=10)
    await queue.pause(Pause(at=1.0, by="ada@host"))
    assert await queue.receive(1, LEASE, NOW) == []
    await queue.resume()
    assert len(await queue.receive(1, LEASE, NOW)) == 1
