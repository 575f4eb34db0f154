"""Values that would like to be code, and what a task prints when it is run as a worker does."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobq.task import Task

HOSTILE = [
    "plain", "two words", "it's", '"', "'", "''", "\\", "\\'", "a\nb", "\n", "$(touch pwned)", "`touch pwned`", "$HOME",
    "${HOME}", "; touch pwned", "&& touch pwned", "| touch pwned", "> pwned", "#", "*", "~", "!!", "{line}", "{{",
    "a b'c\"d", "\t", " ", "ünï", "\u202e", "\x1b[31m", "%s", "\r", "a=b", "a[$(touch pwned)]",
    "() { :; }; touch pwned",
    "'; touch pwned; '", '"; touch pwned; "', "\\$(touch pwned)", "EOF\ntouch pwned\n", "}; touch pwned; #",
]  # fmt: skip


def said_by(work: Task | Mapping[str, Any], shell: str = "bash", cwd: Path = Path("/")) -> str:
    """Run a task, or its fields, as a worker does; return what it prints."""
    task = work if isinstance(work, Task) else Task.new(**work)
    argv = list(task.argv) if task.argv is not None else [shell, "-c", str(task.command)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, cwd=cwd, env={"HOME": "/", **task.env})
    return done.stdout.decode()
