"""T11: wherever the embedded store is killed, or loses power, it opens again with what it had acknowledged (S1, S5).

In processes of their own: the search reaps children, and forks, which a process with threads should not.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash.__main__ import SKIPPED, SPARSELY
from tests.crash.planted import BUGS, FOUND_BY

pytestmark = pytest.mark.check


def searched(*words: str) -> tuple[int, dict[str, Any]]:
    """Run a search; return its exit code and its figures."""
    command = [sys.executable, "-m", "tests.crash", "--json", *words]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    figures: dict[str, Any] = json.loads(found.stdout)
    if found.returncode == SKIPPED:
        pytest.skip(figures["skipped"])
    return found.returncode, figures


_CUT = """
import os, sys
from pathlib import Path
from tests.crash.tracer import Act, trace, missing
if why := missing():
    print(why)
    sys.exit(3)
folder = Path(sys.argv[1])

def work(telling):
    file = os.open(folder / "file", os.O_CREAT | os.O_WRONLY)
    for number in range(3):
        os.write(file, bytes([65 + number]) * 100)
        os.write(telling, b"%d\\n" % number)

for act in (Act.KILL, Act.HALVE):
    calls = []
    def at(call):
        calls.append(call)
        return act if call.data[:1] == b"B" else Act.GO
    told = trace(work, folder, at)
    seen = [(each.name, each.offset, len(each.data)) for each in calls]
    print(told, (folder / "file").read_bytes().count(b"B"), seen)
    (folder / "file").unlink()
"""


def test_a_call_is_stopped_before_it_is_done_or_with_half_of_its_bytes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CUT, str(tmp_path)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode == SKIPPED:
        pytest.skip(found.stdout)
    calls = "[('write', 0, 100), ('told', 0, 2), ('write', 100, 100)]"
    assert found.stdout.splitlines() == [f"['0'] 0 {calls}", f"['0'] 50 {calls}"]


def nothing_wrong(words: Sequence[str], least: int) -> None:
    code, figures = searched(*words)
    print(figures["parts"])
    assert (code, figures["faults"]) == (0, [])
    assert figures["points"] >= least


@pytest.mark.slow("kills the store at dozens of its writes")
@pytest.mark.parametrize(
    ("part", "every", "least"),
    [("kills", 12, 45), ("power", 80, 50)],
)
def test_some_crashes_lose_nothing(part: str, every: int, least: int) -> None:
    nothing_wrong([part, "--every", str(every)], least)


@pytest.mark.night
@pytest.mark.parametrize(("part", "least"), [("kills", 580), ("power", 6000)])
def test_no_crash_loses_anything(part: str, least: int) -> None:
    nothing_wrong([part], least)


@pytest.mark.night("the search itself, with a bug in the store: 15 s each")
@pytest.mark.slow("kills the store at dozens of its writes")
@pytest.mark.parametrize(("bug", "part"), FOUND_BY)
def test_a_planted_bug_is_found(bug: str, part: str) -> None:
    code, figures = searched("--bug", bug, "--every", str(SPARSELY), part)
    assert code == 1
    assert figures["faults"][0]["fault"]


def test_the_death_of_a_process_does_not_find_what_only_the_loss_of_power_shows() -> None:
    """So the images are not another way to say the same."""
    assert "synchronous=OFF" in BUGS
    nothing_wrong(["--bug", "synchronous=OFF", "kills", "--every", "20"], 10)
