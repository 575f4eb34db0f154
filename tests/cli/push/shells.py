"""Values that would like to be code, and what the command of a task prints when it is run as a worker does."""

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobq.submit.command_template import Filled
    from jobq.task import Task

HOSTILE = [
    "plain", "two words", "it's", '"', "'", "''", "\\", "\\'", "a\nb", "\n", "$(touch pwned)", "`touch pwned`", "$HOME",
    "${HOME}", "; touch pwned", "&& touch pwned", "| touch pwned", "> pwned", "#", "*", "~", "!!", "{line}", "{{",
    "a b'c\"d", "\t", " ", "ünï", "\u202e", "\x1b[31m", "%s", "\r", "a=b",
]  # fmt: skip


def said_by(filled: "Filled | Task", shell: str = "bash") -> str:
    """Run a command as a worker does."""
    done = subprocess.run(
        [shell, "-c", str(filled.command)], stdout=subprocess.PIPE, check=True, cwd="/", env={"HOME": "/", **filled.env}
    )
    return done.stdout.decode()
