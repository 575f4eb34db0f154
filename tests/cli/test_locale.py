"""What a task gets is UTF-8, as it was pushed, whatever the locale of its worker says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Jobq

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # lacks even more than ISO-8859-1
TEXT = "日本 café"
CHECK = 'printf %s "$0 $V ${PWD##*/}" > "$0"; ls "$0" >> "$0"'
PROGRAM = """
import jobq.sync
with jobq.sync.connect("demo") as queue:
    queue.worker()
"""


@pytest.mark.parametrize("way", ["worker", "library", "library without a guardian"])
def test_the_locale_changes_no_byte_of_a_task(jobq: Jobq, way: str) -> None:
    """Under ISO-8859-1 a task wrote another file; with a character that the charset lacks it became a dead letter."""
    folder = jobq.folder / TEXT
    folder.mkdir()
    jobq("demo", "push", "--cwd", str(folder), "--env", f"V={TEXT}", "--", "sh", "-c", CHECK, TEXT)
    environment = jobq.environment | ASCII | {"JOBQ_GUARDIAN": "off" if way.endswith("guardian") else "on"}
    argv = [sys.executable, *(("-c", PROGRAM) if way.startswith("library") else ("-m", "jobq", "demo", way))]
    ended = subprocess.run(argv, env=environment, cwd=jobq.folder, capture_output=True, check=False, timeout=60)
    assert ended.returncode == 0, ended
    assert (folder / TEXT).read_text(encoding="utf-8") == f"{TEXT} {TEXT} {TEXT}{TEXT}\n", ended


def test_the_locale_changes_no_byte_of_what_is_pushed_nor_named(jobq: Jobq) -> None:
    names = Path(os.fsdecode(os.fsencode(jobq.folder) + b"/caf\xe9"))
    names.write_bytes(f"echo {TEXT}\n".encode())
    for arguments in (("-c", f"echo {TEXT}"), (os.fsencode(names.name),)):
        argv = [sys.executable, "-m", "jobq", "-q", "demo", "push", *arguments]
        subprocess.run(argv, env=jobq.environment | ASCII, cwd=jobq.folder, check=True, timeout=60)
    assert [each["task"]["command"] for each in jobq("demo", "peek", "--json").objects] == [f"echo {TEXT}"] * 2
