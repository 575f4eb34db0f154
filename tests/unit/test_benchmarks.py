"""What holds for the scripts in `benchmarks/`, which no other test runs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks import machine, sections
from benchmarks.bench import SECTIONS
from benchmarks.measure import Figure, Meter, Row, compared, in_turns, show

_FOLDER = Path(__file__).parents[2] / "benchmarks"
_BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_no_script_hides_a_module_of_python() -> None:
    # A script that is run by its path has this folder first where it imports: `http` there ended them all.
    assert {path.stem for path in _FOLDER.rglob("*.py")} & sys.stdlib_module_names == set()


def test_a_section_that_fails_is_told_and_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Iterator[Row]:
        yield {"what": "first row"}
        raise subprocess.CalledProcessError(255, ["parallel"])

    with pytest.raises(SystemExit, match="failed: one"):
        sections.run({"one": fails, "two": lambda: [{"what": "second row"}]}, as_json=True)
    told = capsys.readouterr()
    whats = [json.loads(line)["what"] for line in told.out.splitlines()]
    assert [what for what in whats if "others used" not in what] == ["first row", "FAILED: one", "second row"]
    assert "CalledProcessError" in told.err


def test_cpu_of_grandchildren_counts() -> None:
    with Meter() as meter:
        subprocess.run(["sh", "-c", '"$0" -c "$1"; true', sys.executable, _BURN], check=True)
    assert 0.3 <= meter.cpu_seconds < 0.3 + meter.seconds


def test_cpu_of_a_process_that_lives_on_counts_where_it_is_named() -> None:
    script = f"input()\n{_BURN}\nprint()\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with Meter(child.pid) as named, Meter() as other:
            print(file=child.stdin, flush=True)
            child.stdout.readline()
        child.communicate("\n")
    assert named.cpu_seconds >= 0.2  # it had some before, and the kernel counts whole hundredths
    assert other.cpu_seconds < 0.1


def test_cpu_of_what_a_command_leaves_behind_counts() -> None:
    # In a process of its own: it adopts orphans from then on.
    leave = '"$0" -c "$1" &'
    script = (
        "import os, sys\n"
        "from benchmarks.commands import whole\n"
        "print(whole(['sh', '-c', sys.argv[1], sys.executable, sys.argv[2]], os.environ).cpu_seconds)"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, leave, _BURN], cwd=_FOLDER.parent, capture_output=True, text=True, check=True
    ).stdout
    assert float(told) >= 0.3


def _stat(user: int, idle: int, steal: int = 0) -> str:
    return f"cpu  {user} 10 20 {idle} 500 0 5 {steal} 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n"


def test_a_machine_that_others_keep_busy_is_warned_of() -> None:
    before = machine.parse(_stat(1000, 8000), ours=1.0, ticks=100)
    # 10 s of 2 cores: 4 s used, 1 s of them ours, 1 s stolen.
    busy = machine.share_of_others(before, machine.parse(_stat(1400, 9500, steal=100), ours=2.0, ticks=100))
    assert busy == pytest.approx(0.2)
    told = machine.warning(busy, "during sqlite")
    assert told is not None
    assert "during sqlite, others used 20%" in told
    ours = machine.share_of_others(before, machine.parse(_stat(1400, 9600), ours=5.0, ticks=100))
    assert ours == pytest.approx(0.0)
    assert machine.warning(ours, "during sqlite") is None


def test_a_row_has_the_cpu_of_both_sides_and_both_ratios() -> None:
    row = compared("work", {"jobq": [Figure(50.0, 2.0)] * 3, "bare": [Figure(100.0, 1.0)]})
    assert row == {
        "what": "work",
        "jobq": {"/s": 50.0, "ms CPU": 2.0},
        "bare": {"/s": 100.0, "ms CPU": 1.0},
        "to bare": {"x": 0.5, "x by CPU": 0.5},
    }
    assert show(row).split(None, 1)[1] == "jobq 50 /s, 2 ms CPU   bare 100 /s, 1 ms CPU   to bare 0.5 x, 0.5 x by CPU"
    times = compared("start", {"jobq": [Figure(50.0, 2.0)], "bare": [Figure(100.0, 1.0)]}, "ms")
    assert (times["jobq"], times["to bare"]) == ({"ms": 20.0, "ms CPU": 2.0}, {"x": 2.0, "x by CPU": 2.0})


def test_sides_take_turns() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str, number: int) -> Figure:
        order.append((name, number))
        return Figure(1.0, 1.0)

    in_turns(2, {name: partial(side, name) for name in "ab"})
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_run_measures_all_that_are_installed(tmp_path: Path) -> None:
    # GNU parallel, where there is one, ended the whole benchmark.
    (row,) = SECTIONS["run"](tmp_path, sections.Options(scale=0))
    assert {"jobq", "xargs"} <= set(row)
    assert ("parallel" in row) is (shutil.which("parallel") is not None)


def test_modules_are_compiled_ahead(tmp_path: Path) -> None:
    (tmp_path / "template.py").write_text("this is no Python {{ at all }}\n")
    (tmp_path / "module.py").write_text("answer = 42\n")
    sections.compile_modules(Path(sys.executable), tmp_path)
    assert [path.name.split(".")[0] for path in (tmp_path / "__pycache__").iterdir()] == ["module"]
