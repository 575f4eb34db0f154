"""S1, S3, S5, P1 over HTTP: replicas and workers are killed at random; nothing is lost, doubled or settled twice."""

import os
import secrets
from pathlib import Path

import pytest

from tests.postgres.server import Database
from tests.service.deployment import Deployment, Scale, Verdict

SEED = int(os.environ.get("HTTP_SEED", "0")) or secrets.randbelow(2**31)


@pytest.fixture
def database(postgres: Database) -> Database:
    return postgres.fresh()


def check(found: Verdict, scale: Scale, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(
            f"\nHTTP_SEED={SEED}: {scale.tasks} tasks, {found.starts} starts, {found.servers_killed} services and"
            f" {found.workers_killed} workers killed, {found.took:.0f} s"
        )
    assert (found.servers_killed, found.workers_killed) == (scale.kills, scale.kills), "void: too few kills"
    assert found.starts > scale.tasks, "void: no kill has interrupted a task"
    assert found.lost == []
    assert found.overlaps == []
    assert found.settled_twice == []


@pytest.mark.night("a deployment under kills: 11 s")
@pytest.mark.timeout(120)
async def test_a_deployment_under_kills(database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scale = Scale(tasks=50, workers=3, slots=4, kills=3, pause=1.0, seconds=60)
    check(await Deployment(database, tmp_path, scale, SEED).run(), scale, capsys)


@pytest.mark.night
@pytest.mark.timeout(1200)
async def test_a_deployment_of_the_issue(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scale = Scale(tasks=2000, workers=10, slots=2, kills=25, pause=3.0, seconds=600)
    check(await Deployment(database, tmp_path, scale, SEED).run(), scale, capsys)
