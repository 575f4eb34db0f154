"""A program that gets a SIGTSTP within a transaction, or waits for one: `python -m tests.sqlite.stopping PATH HOW`."""

import asyncio
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

from jobq_sqlite import transaction
from jobq_sqlite.connection import SqliteConnection
from jobq_sqlite.open_file import OpenFile
from jobq_sqlite.task_sql import Now
from jobq_sqlite.thread_connection import ThreadConnection
from tests.sqlite.support import real_file


def stopped_while_it_writes(database: sqlite3.Connection, now: Now) -> str:
    database.execute("INSERT INTO queue (name, created_at) VALUES ('before', ?)", (now.wall,))
    os.kill(os.getpid(), signal.SIGTSTP)
    database.execute("INSERT INTO queue (name, created_at) VALUES ('after', ?)", (now.wall,))
    return "written"


def written(_database: sqlite3.Connection, _now: Now) -> str:
    return "written"


class Pauses:
    """The time of a transaction, which says when it waits for the lock."""

    def __init__(self) -> None:
        self.monotonic, self._said = time.monotonic, False

    def sleep(self, seconds: float) -> None:
        if not self._said:
            self._said = True
            print("waits", flush=True)
        time.sleep(seconds)


async def main(path: Path, how: str) -> None:
    if how == "waiting":
        vars(transaction)["time"] = Pauses()  # as much of it as is used
    kind = ThreadConnection if how == "thread" else SqliteConnection
    connection = kind(OpenFile(real_file(path)), lambda: None)
    await connection.start()
    print(await connection.submit(written if how == "waiting" else stopped_while_it_writes), flush=True)
    await connection.stop()
    print(signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
