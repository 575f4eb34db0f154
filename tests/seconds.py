"""How long each file of tests took when that was last recorded: `tests/seconds.json`, which git knows.

`python -m tests --tier TIER --record` writes it. It decides which tests run together, and which run first; and a test
that took over five seconds must say why (`pytest.mark.slow`).
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

TIERS: Final = ("test", "check", "night")
LONG: Final = 5.0  # seconds of one test
_FILE: Final = Path(__file__).with_name("seconds.json")


def read(tier: str) -> dict[str, float]:
    """Return the seconds of each file in a tier, by its path from the root."""
    return {file: row[tier] for file, row in _all()["files"].items() if tier in row}


def long_tests() -> set[str]:
    """Return the ids of the tests that took too long to say nothing of it."""
    return set(_all()["long"])


def write(tier: str, reports: Iterable[Path]) -> None:
    """Put what a whole run of a tier took in place of what was recorded of it.

    Args:
        tier: which.
        reports: JUnit's XML.
    """
    files: defaultdict[str, float] = defaultdict(float)
    tests: dict[str, float] = {}
    for report in reports:
        for case in ET.parse(report).iter("testcase"):  # written by ourselves
            files[str(case.get("file"))] += float(case.get("time", 0))
            tests[f"{case.get('file')}::{case.get('name')}"] = float(case.get("time", 0))
    recorded = _all()
    rows = {file: {key: value for key, value in row.items() if key != tier} for file, row in recorded["files"].items()}
    for file, seconds in files.items():
        rows.setdefault(file, {})[tier] = round(seconds, 1)
    is_long: dict[str, float] = {test: round(seconds, 1) for test, seconds in tests.items() if seconds > LONG}
    if tier != "night":  # where each mark says why
        kept = {test: seconds for test, seconds in recorded["long"].items() if test not in tests}
        recorded["long"] = dict(sorted((kept | is_long).items()))
    recorded["files"] = {file: rows[file] for file in sorted(rows) if rows[file] and Path(file).exists()}
    recorded["long"] = {test: took for test, took in recorded["long"].items() if Path(test.partition("::")[0]).exists()}
    parts = (
        f'"{name}": {{\n'
        + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items())
        + "\n }"
        for name, part in recorded.items()
    )
    _FILE.write_text("{\n " + ",\n ".join(parts) + "\n}\n")  # a line a file: what changed is seen


def _all() -> dict[str, Any]:
    if not _FILE.exists():
        return {"files": {}, "long": {}}
    found: dict[str, Any] = json.loads(_FILE.read_text())
    return found
