"""A connection without a thread: for a file that no other process uses, or an event loop whose time is simulated."""

import asyncio
import sqlite3

from jobq_sqlite import transaction
from jobq_sqlite.errors import translate
from jobq_sqlite.thread_connection import ThreadConnection, deliver


class LoopConnection(ThreadConnection):
    """Runs what is handed in on the event loop itself, in its next turn, all of it in one transaction as ever.

    It sees no writes of other processes.
    """

    shares_file = False

    async def start(self) -> None:
        """Open the file; raises what that raises."""
        self._loop = asyncio.get_running_loop()
        try:
            self._database = self.file.open()
        except sqlite3.Error as error:
            raise translate(error, self._path) from error

    async def stop(self) -> None:
        """Finish what was handed in, and close the file."""
        self._hand_over()
        self._stopping = True
        self.file.close(self._database)

    def watch(self, watching: bool) -> None:
        """There is nothing to watch."""

    def _hand_over(self) -> None:
        handed_in, self._handed_in = self._handed_in, []
        wanted = [operation for operation in handed_in if not operation.answer.cancelled()]
        added = transaction.run(wanted, self._database, self.file)
        deliver(wanted)
        if added:
            self._on_foreign_write()
