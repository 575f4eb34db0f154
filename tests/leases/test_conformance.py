"""Every store keeps the rules of named leases: the suite over memory and SQLite in virtual time."""

from pathlib import Path

import pytest

from jobq.testing import named_leases
from tests.leases import harnesses


@pytest.mark.parametrize("case", named_leases.cases(), ids=str)
async def test_memory(case: named_leases.LeaseCase) -> None:
    assert not await named_leases.run_case(case, harnesses.memory())


@pytest.mark.parametrize("case", named_leases.cases(), ids=str)
async def test_sqlite(case: named_leases.LeaseCase, tmp_path: Path) -> None:
    assert not await named_leases.run_case(case, harnesses.sqlite(tmp_path))
