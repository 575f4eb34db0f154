"""Replay the bank of mutants: `python -m tests.mutants [--json] [--learn] [PART OF A NAME OR OF ITS TEST]`.

Each mutant is made in a copy of what git knows, below an environment that finds the copy before this checkout, and its
test runs there, two mutants at a time. Of a test that runs seeds of the simulation, the seed that has shown the mutant
before is run first (`seeds.json`, which `--learn` writes anew); where the menu has changed since, all others are, which
takes longer. The exit code is 1 when one survived, and 2 when one could not be tried.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.bank import BANK
from tests.mutants.mutant import Mutant
from tests.mutants.search import FOUND
from tests.simulation import test_lab
from tests.simulation.campaign import run_many
from tests.simulation.stores import STORES

ROOT: Final = Path(__file__).parent.parent.parent
_AT_ONCE: Final = 2
_SECONDS: Final = 300
_FAILED: Final = 1  # of pytest: tests ran and some failed; any other code but 0 says that they could not run
_INSTALLED: Final = ("tests/azure/azurite/node_modules", ".peer")  # not known to git; used where they are
SEEDS: Final = Path(__file__).with_name("seeds.json")
_LAB: Final = "tests/simulation/test_lab.py::test_no_rule_is_broken"
# What the tests which run seeds run, and on which store.
RUNS: Final[dict[str, tuple[str, Collection[int]]]] = {
    _LAB: ("memory", test_lab.SEEDS),
    f"{_LAB}_by_the_copies_of_service_bus": ("service-bus", test_lab.BUS_SEEDS),
    f"{_LAB}_on_the_machine_of_the_store": ("embedded", test_lab.EMBEDDED_SEEDS),
}


def main(words: list[str]) -> int:
    """Replay those whose names or tests hold a word, all without one; print a line for each."""
    as_json, learns = "--json" in words, "--learn" in words
    words = [word for word in words if word not in {"--json", "--learn"}]
    chosen = [mutant for mutant in BANK if not words or any(word in f"{mutant.name} {mutant.test}" for word in words)]
    seeds = {} if learns else _seeds(chosen)
    with tempfile.TemporaryDirectory(prefix="jobq-mutants-") as folder:
        copies = SimpleQueue[Path]()
        for number in range(_AT_ONCE):
            copies.put(_copy(Path(folder) / str(number)))

        def replay(mutant: Mutant) -> tuple[int, float]:
            copy = copies.get()
            try:
                return _replay(mutant, copy, seeds)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            replayed = list(pool.map(replay, chosen))
    if learns:
        SEEDS.write_text(json.dumps(json.loads(SEEDS.read_text()) | seeds, indent=1, sort_keys=True) + "\n")
    codes = [code for code, _ in replayed]
    caught = codes.count(0)
    if as_json:
        rows = [
            {"mutant": mutant.name, "caught": code == 0, "seconds": round(seconds, 1)}
            for mutant, (code, seconds) in zip(chosen, replayed, strict=True)
        ]
        print(json.dumps({"mutants": len(chosen), "caught": caught, "each": rows}))
    else:
        print(f"{caught} of {len(chosen)} mutants caught")
    return max(codes, default=2)


def _copy(to: Path) -> Path:
    """Copy what git knows, as it is now, with an environment that imports jobq from the copy."""
    known = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    for name in filter(None, known.stdout.decode().split("\0")):
        if (ROOT / name).is_file():  # not deleted since
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    for name in _INSTALLED:
        if (ROOT / name).exists():
            (to / name).symlink_to(ROOT / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", to / ".venv"], check=True)
    ours = Path(_packages(Path(sys.executable)))
    Path(_packages(to / ".venv/bin/python"), "mutants.pth").write_text(
        f"{to}\n{to / 'backends'}\nimport site; site.addsitedir({str(ours)!r})\n"
    )
    return to


def _packages(python: Path) -> str:
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _seeds(chosen: list[Mutant]) -> dict[str, int]:
    """Return the seeds that have shown mutants, by name, without those that show a fault of the right code."""
    seeds: dict[str, int] = json.loads(SEEDS.read_text())
    for test, (store, _) in RUNS.items():
        names = [mutant.name for mutant in chosen if mutant.test == test and mutant.name in seeds]
        failed = {each.seed for each in run_many({seeds[name] for name in names}, STORES[store]).failures}
        for name in names:
            if seeds[name] in failed:
                print(f"seed {seeds.pop(name)} fails without a mutant", file=sys.stderr)
    return seeds


def _replay(mutant: Mutant, copy: Path, seeds: dict[str, int]) -> tuple[int, float]:
    """Return 0 when its test fails, 1 when it passes, 2 when that could not be found out; and the seconds it took.

    Where the test runs seeds, they are run one after the other, its own first, and which one was found is noted.
    """
    file = copy / mutant.file
    right = file.read_text()
    began = time.monotonic()
    file.write_text(right.replace(mutant.text, mutant.wrong))
    try:
        seed = _find(mutant, copy, seeds.get(mutant.name)) if mutant.test in RUNS else None
        code, said = (_FAILED, "") if seed is not None else _run_test(mutant, copy)
    finally:
        file.write_text(right)
    took = time.monotonic() - began
    if code == _FAILED:
        if seed is not None:
            seeds[mutant.name] = seed
        by = "" if seed is None else f" (seed {seed})"
        print(f"caught    {took:6.1f} s  {mutant.name}{by}", file=sys.stderr, flush=True)
        return 0, took
    if code == 0:
        print(f"SURVIVED  {took:6.1f} s  {mutant.name}: {mutant.test} passed", file=sys.stderr, flush=True)
        return 1, took
    told = f"{mutant.name}: {mutant.test} ended with {code}\n{said[-2000:]}"
    print(f"NOT TRIED {took:6.1f} s  {told}", file=sys.stderr, flush=True)
    return 2, took


def _find(mutant: Mutant, copy: Path, known: int | None) -> int | None:
    """Return the first seed of its test that breaks a rule; None = there is none, or they did not come to their end."""
    store, seeds = RUNS[mutant.test]
    order = [*([] if known is None else [known]), *seeds]
    _, said = _run(["-m", "tests.mutants.search", store, *map(str, order)], copy)
    found = re.search(rf"{FOUND} (\d+)", said)
    return None if found is None else int(found[1])


def _run_test(mutant: Mutant, copy: Path) -> tuple[int, str]:
    return _run(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.test], copy)


def _run(command: list[str], copy: Path) -> tuple[int, str]:
    # Optimised bytecode of the right file, made within the same second, would be taken for that of the wrong one.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [str(copy / ".venv/bin/python"), *command],
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            out, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
    return process.returncode, out.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
