"""The look whether the file is still the one that was opened costs nothing worth naming."""

import time
from pathlib import Path

import pytest

from jobq_sqlite.open_file import OpenFile
from tests.sqlite.support import backend, real_file, tasks

pytestmark = pytest.mark.check


async def test_the_look_costs_nothing_worth_naming(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with backend(real_file(path)) as queue:
        await queue.create()
        await queue.push(tasks(1))
    file = OpenFile(real_file(path), create=False)
    database = file.open()
    began = time.perf_counter()
    for _ in range(1000):
        file.now_to_write(database)
        file.confirm()
    each = (time.perf_counter() - began) / 1000
    file.close(database)
    print(f"{each * 1e6:.0f} us")
    assert each < 0.0005
