"""A real deployment: replicas on one PostgreSQL behind a proxy, workers over HTTP; both are killed at random.

Tasks write their own lives into one file, with CLOCK_BOOTTIME as /proc/uptime tells it (10 ms); PostgreSQL writes down
each settlement that it accepts, in the transaction that accepts it.
"""

import asyncio
import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from jobq.task import Budgets, Task
from jobq_http import HttpBackend, HttpConnection
from tests.fork_server import forked
from tests.postgres.server import Database
from tests.service.round_robin import RoundRobin
from tests.service.server import HttpServer

QUEUE: Final = "work"
LEASE_SECONDS: Final = 6
_RECORD: Final = """
    CREATE TABLE settled (id text, receipt text);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO settled VALUES (new.id, split_part(new.settlements, ' ', 1)); RETURN new; END $$;
    CREATE TRIGGER note AFTER UPDATE OF settlements ON jobq.submission FOR EACH ROW
        WHEN (new.settlements <> old.settlements) EXECUTE FUNCTION note();
"""
# Each stamp is one line: who, which attempt, when. The long ones give a kill something to hit.
_LIFE: Final = (
    'stamp() { read -r now _ < /proc/uptime; echo "$JOBQ_TASK_ID $JOBQ_ATTEMPT $now" >> {lives}; };'
    " stamp; for _ in $(seq {steps}); do sleep 0.05; stamp; done"
)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of it."""

    tasks: int
    workers: int
    slots: int
    kills: int  # of servers, and as many of workers
    pause: float  # seconds between two kills, at most
    seconds: float


@dataclass
class Verdict:
    """What came of it; all but the counts of kills must be empty."""

    servers_killed: int = 0
    workers_killed: int = 0
    lost: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    settled_twice: list[str] = field(default_factory=list)
    starts: int = 0
    took: float = 0.0


class Deployment:
    """Three services, a proxy, and workers.

    Args:
        database: an empty one.
        folder: for logs and lives.
        scale: how much.
        seed: of the kills.
    """

    def __init__(self, database: Database, folder: Path, scale: Scale, seed: int) -> None:
        self._database = database
        self._folder = folder
        self._scale = scale
        self._random = random.Random(seed)
        self._servers = [HttpServer(database.spec(QUEUE), folder) for _ in range(3)]
        self._workers: list[asyncio.subprocess.Process] = []
        self._verdict = Verdict()
        self._lives = folder / "lives"

    async def run(self) -> Verdict:
        """Do all of it."""
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in self._servers))
        try:
            self._database.run(_RECORD)
            async with RoundRobin([server.port for server in self._servers]) as proxy:
                await self._run(f"http://127.0.0.1:{proxy.port}")
        finally:
            for worker in self._workers:
                if worker.returncode is None:
                    with suppress(ProcessLookupError):
                        worker.terminate()
            await asyncio.gather(*(worker.wait() for worker in self._workers))
            for server in self._servers:
                server.kill()
        self._verdict.took = asyncio.get_running_loop().time() - began
        self._judge()
        return self._verdict

    async def _run(self, url: str) -> None:
        budgets = Budgets(crashes=1000, retries=1000, preemptions=1000)
        tasks = [
            Task.new(
                command=_LIFE.replace("{lives}", str(self._lives)).replace(
                    "{steps}", str(30 if number % 2 == 0 else 1)
                ),
                budgets=budgets,
            )
            for number in range(self._scale.tasks)
        ]
        async with HttpBackend(HttpConnection(url), QUEUE) as queue:
            for start in range(0, len(tasks), 500):
                await queue.push(tasks[start : start + 500])
        self._ids = [task.id for task in tasks]
        self._url = url
        self._workers += await asyncio.gather(*(self._hire() for _ in range(self._scale.workers)))
        await self._until_many_live()
        await asyncio.gather(self._again_and_again(self._kill_a_server), self._again_and_again(self._kill_a_worker))
        end = asyncio.get_running_loop().time() + self._scale.seconds
        while self._unfinished() and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.3)

    async def _until_many_live(self) -> None:
        """A kill is to hit somebody at work."""
        end = asyncio.get_running_loop().time() + 60
        while not self._lives.exists() or len(self._lives.read_text().splitlines()) < 2 * self._scale.workers:
            assert asyncio.get_running_loop().time() < end, "no task has begun"
            await asyncio.sleep(0.05)

    async def _again_and_again(self, kill: Callable[[], Awaitable[None]]) -> None:
        for _ in range(self._scale.kills):
            await asyncio.sleep(self._random.uniform(0.1, self._scale.pause))
            await kill()

    async def _kill_a_server(self) -> None:
        server = self._random.choice(self._servers)
        server.kill()
        await asyncio.sleep(self._random.uniform(0.0, 0.5))
        await asyncio.to_thread(server.start)
        self._verdict.servers_killed += 1

    async def _kill_a_worker(self) -> None:
        at = self._random.randrange(len(self._workers))
        self._workers[at].kill()  # the watcher; the worker and its tasks go with it (P2)
        await self._workers[at].wait()
        self._workers[at] = await self._hire()
        self._verdict.workers_killed += 1

    async def _hire(self) -> asyncio.subprocess.Process:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
        environment |= {"JOBQ_ALLOW_SHORT_LEASE": "1", "JOBQ_HOME": str(self._folder)}
        with (self._folder / "workers.log").open("ab") as log:
            return await forked.create_subprocess_exec(
                *(sys.executable, "-m", "jobq", f"{self._url}/{QUEUE}", "worker", "-n", str(self._scale.slots)),
                *("--visibility-timeout", f"{LEASE_SECONDS}s", "--idle-timeout", "1h"),
                *("--max-consecutive-failures", "0", "--backoff", "100ms"),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _unfinished(self) -> int:
        return int(self._database.run("SELECT count(*) FROM jobq.submission WHERE ended_at IS NULL")[0][0])

    def _judge(self) -> None:
        found = self._verdict
        done = {row[0] for row in self._database.run("SELECT id FROM jobq.submission WHERE ended_at IS NOT NULL")}
        found.lost = [task_id for task_id in self._ids if task_id not in done]
        settled = Counter(self._database.run("SELECT id, receipt FROM settled"))
        found.settled_twice = [str(each) for each, times in settled.items() if times > 1]
        lives: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for line in self._lives.read_text().splitlines():
            task_id, attempt, at = line.split()
            lives[task_id][int(attempt)].append(float(at))
        found.starts = sum(len(attempts) for attempts in lives.values())
        for task_id, attempts in lives.items():
            ordered = sorted((min(stamps), max(stamps)) for stamps in attempts.values())
            for (_, last), (first, _) in pairwise(ordered):
                if first < last:
                    found.overlaps.append(f"{task_id}: one began at {first}, another lived at {last}")
