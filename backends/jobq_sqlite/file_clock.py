"""The time by which the leases of a file are judged (rules.md 1.3 rule 10).

Leases count on the clock of the boot that the table `host` names, without its suspends: while the machine stands, no
lease of its file runs out, and nobody can take what its worker runs. A process of another boot with the same machine
id cannot know whether that boot is over, or goes on: machines are cloned, and images baked, with their id. So it finds
that boot's time by the wall clock. The first that writes puts the file on its own boot's time: all leases keep what is
left of them, their holders can renew them, and every process of the boot counts alike from there on. A reboot so costs
one lease. One that has seen the file on its own boot before is a clone, whose time was taken by the other: it
goes on by the other's while any lease stands.
"""

import sqlite3
from pathlib import Path
from typing import Final

from jobq.clock import Clock
from jobq.errors import StoreUnusable
from jobq_sqlite import journal_writer
from jobq_sqlite.errors import StoreReplaced
from jobq_sqlite.host import BootedHost
from jobq_sqlite.task_sql import Now

_WALL_STEP_SECONDS: Final = 0.5  # how far the wall clock may be stepped before that is noted for other boots
_EXPIRE_NAMED: Final = "UPDATE lease SET expires_at = ? WHERE state = 'held'"
_HOST: Final = "SELECT machine_id, boot_id, boottime, wall FROM host"
_WRITE_HOST: Final = "UPDATE host SET machine_id = ?, boot_id = ?, boottime = ?, wall = ?"
_ANY_LEASE: Final = (
    "SELECT EXISTS (SELECT 1 FROM task WHERE state = 'leased' AND expires_at > :now)"
    " OR EXISTS (SELECT 1 FROM lease WHERE state = 'held' AND expires_at > :now)"
)
# No lease was granted or renewed later than now: a wall clock that says so has lost its time. When that was is noted of
# a task by the wall clock; a name's end and length tell it by the boot's clock, in old files its grant alone.
_LATEST_GRANT: Final = (
    "SELECT max(coalesce((SELECT max(max(started_at, coalesce(heartbeat_at, 0))) FROM task WHERE state = 'leased'), 0),"
    " coalesce((SELECT max(acquired_at) FROM lease WHERE state = 'held'), 0)),"
    " (SELECT max(expires_at - ttl) FROM lease WHERE state = 'held' AND ttl > 0)"
)
_MOVE: Final = (
    "UPDATE task SET expires_at = expires_at - ? WHERE state = 'leased'",
    "UPDATE lease SET expires_at = expires_at - ?",
)


class FileClock:
    """The time of one file.

    Args:
        path: the file, for messages.
        clock: this machine's.
        host: this machine and boot.
        adopt: take over a file of another machine.
    """

    def __init__(self, path: Path, clock: Clock, host: BootedHost, *, adopt: bool) -> None:
        self._path = path
        self._clock = clock
        self._host = host
        self._adopt = adopt
        self._other_boot = ""  # the one whose file it is, when it is not ours
        self._ahead = 0.0  # by which its time is ahead of ours, in seconds
        self._was_ours = False
        self._row: tuple[str, str, float, float]  # of the table host, as the latest `now` found it

    def now(self, database: sqlite3.Connection) -> Now:
        """Return the time; raises StoreUnusable for a file that is another machine's, StoreReplaced if it became so."""
        self._row = machine_id, boot_id, boottime, wall = database.execute(_HOST).fetchone()
        if boot_id == self._host.boot_id:
            self._other_boot, self._was_ours = "", True
            return Now(self._clock.boottime(), self._clock.wall())
        self._refuse_other_machine(machine_id, boot_id)
        if boot_id != self._other_boot:
            latest, latest_boottime = database.execute(_LATEST_GRANT).fetchone()
            there = max(boottime + max(self._clock.wall(), latest, wall) - wall, latest_boottime or 0.0)
            self._other_boot, self._ahead = boot_id, there - self._clock.boottime()
        return Now(self._clock.boottime() + self._ahead, self._clock.wall(), self._ahead)

    def keep(self, database: sqlite3.Connection) -> Now:
        """Return the time, and see that the file names the boot that it is counted on; in a transaction that writes."""
        now = self.now(database)
        machine_id, boot_id, boottime, wall = self._row
        ours = boot_id == self._host.boot_id
        if ours and abs((now.wall - now.boottime) - (wall - boottime)) <= _WALL_STEP_SECONDS:
            return now
        if ours:
            return self._write(database, machine_id)
        if not self._host.owns(machine_id, boot_id):
            self._end_all(database, now)
        elif self._was_ours and database.execute(_ANY_LEASE, {"now": now.boottime}).fetchone()[0]:
            return now
        else:
            for move in _MOVE:
                database.execute(move, (self._ahead,))
        return self._write(database, self._host.machine_id)

    def _write(self, database: sqlite3.Connection, machine_id: str) -> Now:
        now = Now(self._clock.boottime(), self._clock.wall())
        database.execute(_WRITE_HOST, (machine_id, self._host.boot_id, now.boottime, now.wall))
        return now

    def _end_all(self, database: sqlite3.Connection, now: Now) -> None:
        """End every lease of the other machine: the file was said to be ours alone."""
        lost = database.execute(
            "SELECT seq, deliveries, holder, started_at, expires_at FROM task WHERE state = 'leased'"
        )
        journal_writer.note_lost(database, lost.fetchall(), now.boottime, now.wall)
        database.execute(journal_writer.CANCEL_LEASED, (now.wall,))
        database.execute(
            "UPDATE task SET state = 'ready', available_at = ?, receipt = NULL, expires_at = NULL,"
            " holder = NULL, beat = NULL WHERE state = 'leased'",
            (now.wall,),
        )
        database.execute(_EXPIRE_NAMED, (self._clock.boottime(),))

    def _refuse_other_machine(self, machine_id: str, boot_id: str) -> None:
        if self._adopt or self._host.owns(machine_id, boot_id):
            return
        if self._was_ours:
            raise StoreReplaced(f"{self._path} was taken over by another machine (JOBQ_SQLITE_ADOPT)")
        raise StoreUnusable(
            f"{self._path} belongs to another machine, whose leases cannot be judged from here. One file serves one"
            " machine; for several use Azure or PostgreSQL. If the file was moved here and nothing else uses it, run"
            " one command with JOBQ_SQLITE_ADOPT=1"
        )
