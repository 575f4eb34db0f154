"""A pause over HTTP: a worker with the least rights waits for its end."""

import json
from pathlib import Path

import pytest

from jobq.errors import ConfigurationError
from jobq.settings import Settings
from jobq.spec import resolve
from jobq_http.backend import HttpBackend
from tests.cli.conftest import Jobq
from tests.service.server import running


@pytest.fixture
def jobq(tmp_path: Path) -> Jobq:
    return Jobq(tmp_path)


def test_a_worker_that_may_not_count_is_told_of_the_pause_all_the_same(jobq: Jobq, tmp_path: Path) -> None:
    place = f"sqlite://{tmp_path}/jobs.db/demo"
    token = jobq("serve", "token", "create", place, "--scope", "lease", "--scope", "settle").out.strip()
    with running(place, tmp_path, is_open=False) as server:
        assert server.token_file is not None
        spec, owner = f"{server.url}/demo", {"JOBQ_HTTP_TOKEN": server.token_file.read_text()}
        jobq(spec, "push", "-c", "echo ran", env=owner)
        jobq(spec, "pause", "a new driver", env=owner)
        assert ": a new driver" in jobq(spec, "size", env=owner).out
        with jobq.start(spec, "worker", "--json", env={"JOBQ_HTTP_TOKEN": token}) as worker:
            assert worker.stdout is not None
            events = (json.loads(line) for line in worker.stdout)
            met = next(each for each in events if each["event"] == "queue.paused")
            assert met["detail"].endswith(": a new driver")
            assert "it was paused for" in jobq(spec, "resume", env=owner).err
            assert "ran" in [each.get("line") for each in events]
        assert worker.returncode == 0


async def test_a_service_that_is_older_is_named(tmp_path: Path) -> None:
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path) as server:
        async with resolve(f"{server.url}/demo", Settings()) as queue:
            await queue.create()
            assert isinstance(queue, HttpBackend)
            with pytest.raises(ConfigurationError, match="the service is older than this jobq; update it"):
                await queue._ask("PUT", "/what-a-later-version-asks-for")
