"""`make bench-ui`: what a page costs on a deep queue, and what 200 viewers cost those who claim.

A real `jobq serve --ui` on a file with 1,000,000 tasks in one queue (`benchmarks.views` says which). Pages are asked
for over loopback, each after what was looked up has been forgotten. Viewers are connections of a process of its own
that ask for a page each every five seconds, as browsers do; claims are taken in turn with and without them.
"""

import asyncio
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.views import _claims, _fill_file, _shown
from jobq.clock import SystemClock
from jobq.dashboard.snapshots import FRESH_SECONDS
from jobq_sqlite import SqliteBackend, StoreFile
from jobq_sqlite.host import this_host
from tests.dashboard.support import Dashboard
from tests.service.server import HttpServer

_ROUNDS: Final = 10
_PAGES: Final = {
    "queues": "",
    "a queue": "q/q",
    "tasks, none filtered": "q/q/tasks",
    "tasks, ready": "q/q/tasks?state=ready",
    "tasks, dead by exit": "q/q/tasks?state=dead&exit=0",
    "tasks, text of which none has any": "q/q/tasks?state=ready&text=*no+such+word*",
    "a task": "q/q/t/t-00000500",
    "running": "q/q/running",
    "dead letters": "q/q/dead",
    "hosts": "q/q/hosts",
}
_VIEWERS: Final = 200
_POLL_SECONDS: Final = 5.0
_TURNS: Final = 4  # of claims without viewers and with them


def main() -> None:
    """Measure; or be the viewers."""
    if sys.argv[1:2] == ["viewers"]:
        asyncio.run(_view_for_ever(int(sys.argv[2]), json.loads(sys.stdin.readline())))
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="jobq-dashboard-") as name:
        folder = Path(name)
        asyncio.run(_measure(folder, count))


async def _measure(folder: Path, count: int) -> None:
    path = folder / "jobs.db"
    file = StoreFile(path=path, clock=SystemClock(), host=this_host())
    async with SqliteBackend(file, "q") as queue:
        await queue.create()
        await asyncio.to_thread(_fill_file, path, count)
    spec = f"sqlite://{path}/q"
    plain, server = HttpServer(spec, folder, is_open=False), HttpServer(spec, folder, "--ui", is_open=False)
    try:
        await asyncio.to_thread(plain.start)
        await asyncio.to_thread(server.start)
        print(
            f"serve, {count:,} tasks: {_rss(plain):.0f} MB without --ui, {_rss(server):.0f} MB with it, before any page"
        )
        plain.kill()
        dashboard = Dashboard(server, spec, folder)
        cookies = await asyncio.to_thread(_signed_in, dashboard)
        await asyncio.to_thread(_pages, dashboard, cookies[0])
        print(f"with --ui, after these pages: {_rss(server):.0f} MB")
        async with SqliteBackend(file, "q") as queue:
            await _beside_viewers(queue, server.port, cookies)
    finally:
        for each in (plain, server):
            with suppress(OSError, AttributeError):
                each.kill()


def _signed_in(dashboard: Dashboard) -> Sequence[str]:
    token = dashboard.token("view", "operate")
    return [dashboard.sign_in(token) for _ in range(_VIEWERS)]


def _pages(dashboard: Dashboard, cookie: str) -> None:
    times: dict[str, list[float]] = {name: [] for name in _PAGES}
    sizes = {}
    for _ in range(_ROUNDS):
        time.sleep(FRESH_SECONDS + 0.2)
        for name, path in _PAGES.items():
            began = time.perf_counter()
            answer = dashboard.ask("GET", f"/ui/{path}", cookie=cookie)
            times[name].append(1000 * (time.perf_counter() - began))
            assert answer.status == 200, (path, answer.status)
            sizes[name] = len(answer.text.encode()), len(gzip.compress(answer.text.encode()))
    for name, found in times.items():
        whole, small = sizes[name]
        print(f"  {name}: {_shown(found)}; {whole / 1000:.0f} KB, {small / 1000:.0f} KB compressed")


async def _beside_viewers(queue: SqliteBackend, port: int, cookies: Sequence[str]) -> None:
    alone: list[float] = []
    beside: list[float] = []
    answered = 0
    for _ in range(_TURNS):
        alone += await _claims(queue)
        words = [sys.executable, "-m", "benchmarks.dashboard", "viewers", str(port)]
        pipe = asyncio.subprocess.PIPE
        viewers = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
        assert viewers.stdin is not None
        assert viewers.stdout is not None
        viewers.stdin.write(json.dumps(list(cookies)).encode() + b"\n")
        await viewers.stdin.drain()
        await viewers.stdout.readline()  # each has had its first page
        beside += await _claims(queue)
        viewers.stdin.close()  # they end, and say how many pages they had
        answered += int((await viewers.stdout.readline()) or 0)
        await viewers.wait()
    rates = [1000 / statistics.median(each) for each in (alone, beside)]
    print(f"  claim and release without viewers: {_shown(alone)}")
    print(f"  beside {_VIEWERS} viewers, {answered:,} pages: {_shown(beside)}; {rates[1] / rates[0]:.2f} of the rate")


async def _view_for_ever(port: int, cookies: Sequence[str]) -> None:
    pages = list(_PAGES.values())
    answered = 0
    first = asyncio.Semaphore(0)

    async def view(number: int) -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(number / len(cookies) * _POLL_SECONDS)
        while True:
            head = f"GET /ui/{pages[number % len(pages)]} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nhx-request: true\r\n"
            writer.write(f"{head}Cookie: {cookies[number]}\r\n\r\n".encode())
            told = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(told.partition(b"content-length:")[2].split(b"\r\n")[0])
            assert told.split()[1] in (b"200", b"204"), told
            await reader.readexactly(length)
            answered += 1
            first.release()
            await asyncio.sleep(_POLL_SECONDS)

    viewers = [asyncio.create_task(view(number)) for number in range(len(cookies))]
    for _ in viewers:
        await first.acquire()
    print("all are there", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(answered, flush=True)
    for each in viewers:
        each.cancel()


def _rss(server: HttpServer) -> float:
    """Return the memory that a service has in use, in MB."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
