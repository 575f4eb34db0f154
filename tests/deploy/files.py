"""What deploy/ holds, read for the tests."""

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from jobq.formats import durations
from jobq.run.stopping import GIVE_BACK_SECONDS

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
GIVE_BACK: Final = timedelta(seconds=GIVE_BACK_SECONDS)
_VARIABLE: Final = re.compile(r"\bJOBQ_[A-Z_]+\b")

Document = dict[str, Any]


def texts() -> dict[str, str]:
    """Return each file of deploy/ by its path."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(DEPLOY.rglob("*")) if path.is_file()}


def variables(text: str) -> set[str]:
    return set(_VARIABLE.findall(text))


def tool(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool that is installed beside this Python."""
    command = [str(Path(sys.executable).parent / arguments[0]), *arguments[1:]]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)


def documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def check_grace(environment: dict[str, str], platform: timedelta) -> None:
    """Hold a platform's grace period to what the worker is told, and to what its stop takes."""
    told = durations.parse(environment["JOBQ_TERMINATION_GRACE"])
    assert told == platform
    assert durations.parse(environment["JOBQ_STOP_GRACE"]) + GIVE_BACK <= platform
