"""A real `jobq worker` of the campaign: its three processes, and the proxy between it and the store."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tests.chaos.processes import THREE, Processes
from tests.chaos.stores import Store
from tests.support.tcp_proxy import TcpProxy

LEASE_SECONDS: Final = 5.0
BLOCK_LEASES: Final = 1.15  # how long a loop is blocked, in lengths of the lease
SHORT: Final = {  # where what happens is known beforehand, and only its end is waited for
    "JOBQ_VISIBILITY_TIMEOUT": "2s",
    "JOBQ_KILL_MARGIN": "0.3s",
    "JOBQ_SCHEDULE_MARGIN": "0.1s",
    "JOBQ_BACKOFF": "0.05s",
}
SHORT_SECONDS: Final = 2.0
ENDING_SECONDS: Final = 60.0  # a loaded machine's; what has not ended by then is left alive
_OPTIONS: Final = ("--idle-timeout", "10h", "--max-consecutive-failures", "0", "--stop-grace", "1s", "--quiet-output")
_SETTINGS: Final = {
    "JOBQ_ALLOW_SHORT_LEASE": "1",
    "JOBQ_BACKOFF": "0.1s",
    "JOBQ_LOG_FORMAT": "json",
    "JOBQ_POLL_MAX": "1s",
    "JOBQ_SCHEDULED_EVENTS": "off",
    "JOBQ_VISIBILITY_TIMEOUT": f"{LEASE_SECONDS:g}s",
    "CHAOS_BLOCK_SECONDS": f"{BLOCK_LEASES * LEASE_SECONDS:g}",
}
_SITE: Final = Path(__file__).with_name("site")


def environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return what a command of a campaign is started with: no variable of jobq's but these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    return {**kept, **_SETTINGS, **more, "HOME": str(folder), "JOBQ_HOME": str(folder)}


class Member:
    """One worker.

    Attributes:
        processes: its three.
        proxy: between it and its store; None where there is no network.
        was_struck: whether a blow hit its processes: then it may end.
    """

    def __init__(
        self, popen: "subprocess.Popen[bytes]", processes: Processes, proxy: TcpProxy | None, log: Path
    ) -> None:
        self.processes = processes
        self.proxy = proxy
        self.was_struck = False
        self._popen = popen
        self._log = log
        self._handles = [os.pidfd_open(getattr(processes, name)) for name in THREE]

    @classmethod
    async def hired(
        cls, store: Store, slots: int, proxy: TcpProxy | None, more: Mapping[str, str] = {}, older: Path | None = None
    ) -> Self:
        """Start one; return once its three processes are there.

        Args:
            store: whose queue it works on.
            slots: how many tasks it runs at once.
            proxy: which it is to speak through.
            more: of its environment.
            older: another checkout of jobq that it is to be; None = this one.
        """
        spec, its = store.reached(proxy.port if proxy else 0)
        paths = [_SITE, older, older / "backends"] if older else [_SITE]
        its = {**its, "PYTHONPATH": os.pathsep.join(map(str, paths)), **more}
        with (store.folder / "workers.log").open("ab") as log:
            popen = subprocess.Popen(
                [sys.executable, "-m", "jobq", spec, "worker", "-n", str(slots), *_OPTIONS],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment(store.folder, its),
                cwd=store.folder,
                start_new_session=True,
            )
        try:
            return cls(popen, await asyncio.to_thread(Processes, popen.pid), proxy, store.folder / "workers.log")
        except BaseException:
            popen.kill()
            popen.wait()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether any of its three processes has: then the others are about to."""
        return bool(select.select(self._handles, [], [], 0)[0])

    async def until_dying(self) -> None:
        """Return once any of its three processes has ended."""
        await asyncio.to_thread(select.select, self._handles, [], [], ENDING_SECONDS)

    async def ended(self) -> bool:
        """Wait for the end of all three; False when one does not end, and is killed."""

        def wait() -> bool:
            return all(select.select([handle], [], [], ENDING_SECONDS)[0] for handle in self._handles)

        have_ended = await asyncio.to_thread(wait)
        if not have_ended:
            self._say_who_lives()
        for handle in self._handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self._handles = []
        await asyncio.to_thread(self._popen.wait)
        self.processes.close()
        return have_ended

    def _say_who_lives(self) -> None:
        """Note in the workers' log what the kernel says of those that do not end."""
        with self._log.open("a") as log:
            for name in THREE:
                for path in Path(f"/proc/{getattr(self.processes, name)}").glob("task/*"):
                    with suppress(OSError):
                        status = (path / "status").read_text().split("\n")
                        wanted = ("State", "PPid", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
                        print(name, path, *(line for line in status if line.startswith(wanted)), file=log)
                        print((path / "wchan").read_text(), file=log)

    async def dismissed(self) -> bool:
        """Ask it to stop, as a service manager would, and wait for that; False when it had to be killed."""
        self.processes.resume()
        self._popen.terminate()
        return await self.ended()


def carriers(history: Path) -> list[int]:
    """Return every process that has a campaign's history among its arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended while we looked
            if os.fsencode(history) in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found
