"""Walking through all that has not ended: each once, and a page costs what it holds."""

import asyncio

from jobq.journal.store import journal_of
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task
from jobq_postgres.journal import UNFINISHED
from tests.postgres.server import Database


async def test_pages_go_by_the_index(postgres: Database) -> None:
    """`cancel --all` over many tasks sorts nothing (a sort of each page's rest is quadratic)."""
    database = postgres.fresh()
    try:
        async with resolve(database.spec(), Settings()) as backend:
            await backend.create()
            # What collations order differently than bytes do.
            ids = [f"{letter}{mark}{number}" for letter in "aBc" for mark in "-._" for number in range(100)]
            await backend.push([Task.new(command="true", id=id_) for id_ in ids])
            journal, seen, after = journal_of(backend), list[str](), ""
            while page := await journal.unfinished(after, 70):
                after = page[-1].id
                seen += [record.id for record in page]
            assert sorted(seen) == sorted(ids)
        await asyncio.to_thread(database.run, "ANALYZE jobq.task")
        plan = await asyncio.to_thread(database.run, f"EXPLAIN {UNFINISHED}", 1, "", 70)
        text = "\n".join(row[0] for row in plan)
        assert "task_by_id" in text, text
        assert "Sort" not in text, text
    finally:
        database.drop()
