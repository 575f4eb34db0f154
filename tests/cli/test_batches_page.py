"""docs/batches.md: each of its command lines and programs is run, in order, with a smaller grid."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Jobq

_PAGE = Path(__file__).parents[2] / "docs" / "batches.md"
_BLOCK = re.compile(r"```(console|python)(?: (\S+))?\n(.*?)```", re.DOTALL)
_FAILS = {"$ jobq demo batch wait s7": [1, 0]}  # the first time some have failed


def test_the_page_works_as_printed(jobq: Jobq) -> None:
    python = jobq.folder / "python3"
    python.symlink_to(sys.executable)
    jobq.environment["PATH"] = f"{jobq.folder}:{jobq.environment['PATH']}"
    codes = {line: iter(each) for line, each in _FAILS.items()}
    ran = 0
    for kind, name, text in _BLOCK.findall(_PAGE.read_text()):
        if name:
            (jobq.folder / name).write_text(text)
        elif kind == "python":
            (jobq.folder / "program.py").write_text(text)
            subprocess.run(
                [sys.executable, "program.py"], cwd=jobq.folder, env=jobq.environment, check=True, timeout=60
            )
        else:
            for line in text.splitlines():
                assert line.startswith("$ ")
                words = shlex.split(line[2:].replace("1..5000", "1..20"))
                if words[0] == "jobq":
                    jobq(*words[1:], code=next(codes[line]) if line in codes else 0)
                else:
                    subprocess.run(words, cwd=jobq.folder, check=True)
                ran += 1
    assert ran == 14
    assert len((jobq.folder / "s7.csv").read_text().splitlines()) == 41
    assert (jobq.folder / "whole").read_text() == "1\n2\n"
