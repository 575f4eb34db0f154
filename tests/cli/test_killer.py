"""A task that kills its worker, among others, through the real command line (S11)."""

from datetime import timedelta

from jobq.backend import Backend
from jobq.task import Task
from tests.cli.conftest import Jobq

CRASHES = 3  # forgiven by default
QUICK = {
    "JOBQ_ALLOW_SHORT_LEASE": "1",
    "JOBQ_VISIBILITY_TIMEOUT": "2s",
    "JOBQ_KILL_MARGIN": "0.3s",
    "JOBQ_SCHEDULE_MARGIN": "0.1s",
    "JOBQ_BACKOFF": "0s",
}


def test_s11_a_killer_takes_none_of_its_neighbours_with_it(jobq: Jobq) -> None:
    """It has taken three others with it as often as is forgiven: nobody can say which of the four it is."""
    killer, *_ = jobq.fill(Task.new(command="kill -9 $PPID"), *[Task.new(command="true") for _ in range(3)])

    async def crash(backend: Backend) -> None:
        for _ in range(CRASHES):
            taken = await backend.receive(4, timedelta(milliseconds=20), timedelta(seconds=1))
            assert len(taken) == 4

    jobq.inside(crash)
    jobq.fill(*[Task.new(command="true") for _ in range(17)])
    workers = [jobq("demo", "worker", "-n", "4", env=QUICK, code=None) for _ in range(2)]
    assert [worker.code for worker in workers] == [137, 0]
    dead = [letter["id"] for letter in jobq("demo", "dead", "list", "--json").objects]
    assert dead == [killer], "".join(worker.err for worker in workers)
    assert not jobq.waiting()


def test_s11_what_goes_back_for_room_is_in_its_history_as_given_back_unstarted(jobq: Jobq) -> None:
    """Azure's journal had it as failed, and the others left its attempts out."""
    ids = jobq.fill(*[Task.new(command="true") for _ in range(2)])

    async def crash(backend: Backend) -> None:
        for _ in range(CRASHES):
            assert len(await backend.receive(2, timedelta(milliseconds=20), timedelta(seconds=1))) == 2

    jobq.inside(crash)
    jobq("demo", "worker", "-n", "2", env=QUICK)
    ends = [
        [each["outcome"] for each in jobq("demo", "status", each_id, "--json").objects[0]["attempts"]]
        for each_id in ids
    ]
    assert sorted(ends, key=len) == [
        ["lock_lost"] * CRASHES + ["succeeded"],
        ["lock_lost"] * CRASHES + ["released", "succeeded"],
    ]
