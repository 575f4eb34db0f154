"""Runs the reliability lab and writes its report: `python -m tests.reliability night --hours 8`, then `report`.

Each part leaves a record in build/reliability, failed or not; the report is made of these alone.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.reliability.parts import PARTS, Part
from tests.reliability.report import report

ROOT: Final = Path(__file__).parent.parent.parent
RECORDS: Final = ROOT / "build" / "reliability"
REPORT: Final = ROOT / "docs" / "reliability.md"


def main(words: list[str]) -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    night = commands.add_parser("night", help="run all parts, or some, and keep their records")
    night.add_argument("--hours", type=float, default=8.0, help="for the parts that run as long as they are asked")
    night.add_argument("--part", action="append", choices=[part.name for part in PARTS], help="only this (repeatable)")
    commands.add_parser("report", help="write docs/reliability.md from the records")
    arguments = parser.parse_args(words)
    if arguments.command == "report":
        REPORT.write_text(report([json.loads(file.read_text()) for file in sorted(RECORDS.glob("*.json"))]))
        print(REPORT.relative_to(ROOT))
        return 0
    parts = [part for part in PARTS if arguments.part is None or part.name in arguments.part]
    shares = sum(part.share for part in parts) or 1.0
    return max(_run(part, 3600 * arguments.hours * part.share / shares) for part in parts)


def _run(part: Part, seconds: float) -> int:
    """Run a part and keep its record; return its exit code."""
    first = int(time.time() * 1000) % 1_000_000_000  # seeds that nobody has seen
    command = [word.format(seconds=round(seconds), first=first) for word in part.command]
    print(f"{part.name}: python {' '.join(command)}", flush=True)
    began = time.monotonic()
    ended = subprocess.run([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    record = {
        "part": part.name,
        "command": f"python {' '.join(command)}",
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": _machine(),
        "seconds": round(time.monotonic() - began),
        "exit_code": ended.returncode,
        "figures": _figures(ended.stdout),
    }
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{part.name}.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print(f"{part.name}: ended with {ended.returncode} after {record['seconds']} s", flush=True)
    return abs(ended.returncode)


def _figures(text: str) -> Any:
    """Return the JSON object that was printed last; a part that died before has none."""
    try:
        return json.loads(text.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {}


def _machine() -> str:
    system = f"{platform.system()} {platform.machine()}"
    return f"{os.cpu_count()} cores, {system}, Python {platform.python_version()}"


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    changes = git("status", "--porcelain", "jobq", "backends")
    return git("rev-parse", "--short", "HEAD") + (" and changes" if changes else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
