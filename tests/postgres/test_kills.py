"""PostgreSQL is killed and comes back in the middle of work, with the real worker (S1, S3, S5, L1)."""

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from jobq.task import Task
from jobq_postgres import PostgresBackend
from tests.fork_server import forked
from tests.postgres.server import Database, PostgresServer

pytestmark = pytest.mark.night("kills the server in the middle of work: 13 s")

_TASKS = 1000
_KILL_AFTER = (200, 500)  # tasks that have ended
# Each holds a lock while it lives: a second one that runs beside it says so.
_COMMAND = 'exec 9>>"lock-$JOBQ_TASK_ID"; flock -n 9 || echo "$JOBQ_TASK_ID" >>overlaps; echo "$JOBQ_TASK_ID" >>runs'
# What the server itself saw: each end of a lease that was not its expiry, with the delivery it ended.
_WITNESS = """
    CREATE TABLE public.settled (id text, deliveries integer, receipt uuid);
    CREATE FUNCTION public.witness() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF OLD.expires_at > clock_timestamp() AND (TG_OP = 'DELETE' OR NEW.receipt IS DISTINCT FROM OLD.receipt) THEN
            INSERT INTO public.settled VALUES (OLD.id, OLD.deliveries, OLD.receipt);
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER witness AFTER UPDATE OR DELETE ON jobq.task FOR EACH ROW EXECUTE FUNCTION public.witness();
"""


@pytest.mark.timeout(240)
async def test_server_is_killed_in_the_middle_of_a_thousand_tasks(own_postgres: PostgresServer, tmp_path: Path) -> None:
    database = own_postgres.database
    async with PostgresBackend(database.server(), "q") as queue:
        await queue.create()
        tasks = [Task.new(command=_COMMAND) for _ in range(_TASKS)]
        await queue.push(tasks)
    database.run(_WITNESS)
    worker = await _worker(database.spec(), tmp_path)
    try:
        for count in _KILL_AFTER:
            await _until_run(tmp_path, count, worker)
            own_postgres.kill()
            await asyncio.to_thread(own_postgres.start)
        await _until_run(tmp_path, _TASKS, worker)
        await _until_empty(database)
        worker.send_signal(signal.SIGUSR1)
        _, err = await asyncio.wait_for(worker.communicate(), 60)
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    assert worker.returncode == 0, err.decode()[-3000:]
    runs = Counter((tmp_path / "runs").read_text().split())
    assert runs.keys() == {task.id for task in tasks}, "an acknowledged task was lost, or one came from nowhere"
    assert not (tmp_path / "overlaps").exists(), "two of one task ran at once"
    assert database.run("SELECT count(*) FROM jobq.task") == [(0,)]
    assert database.run("SELECT count(*) FROM jobq.dead") == [(0,)]
    settled = database.run("SELECT id, deliveries, count(*) FROM public.settled GROUP BY 1, 2")
    assert {row[0] for row in settled} == runs.keys()
    assert {row[2] for row in settled} == {1}, "a delivery was settled twice"
    again = sum(runs.values()) - _TASKS
    assert again <= 4 * len(_KILL_AFTER), "more tasks ran again than were under way when the server was killed"


async def _worker(spec: str, folder: Path) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    return await forked.create_subprocess_exec(
        *(sys.executable, "-m", "jobq", spec, "worker", "-n", "4"),
        *("--visibility-timeout", "10s", "--idle-timeout", "60s"),
        env={**environment, "HOME": str(folder), "JOBQ_SCHEDULED_EVENTS": "off"},
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def _until_empty(database: Database) -> None:
    async with asyncio.timeout(60):
        while database.run("SELECT count(*) FROM jobq.task") != [(0,)]:
            await asyncio.sleep(0.2)  # leases of claims whose answer was lost run out by themselves


async def _until_run(folder: Path, count: int, worker: asyncio.subprocess.Process) -> None:
    file = folder / "runs"
    async with asyncio.timeout(120):
        while not file.exists() or len(set(file.read_text().split())) < count:
            assert worker.returncode is None, "the worker has ended"
            await asyncio.sleep(0.05)  # the tasks tell nobody but the file
