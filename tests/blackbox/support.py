"""Runs the installed `jobq` as a user does: real processes in an empty home, known by a mark in their environment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

JOBQ: Final = Path(os.environ.get("JOBQ_BIN") or Path(sys.executable).with_name("jobq")).absolute()
PATIENCE: Final = 30.0  # seconds for what takes one or two alone: other tests may run beside


def until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    """Wait until this holds; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


class Bench:
    """A folder to work in, with a home and a TMPDIR of its own; all processes begun here carry its mark."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []
        for name in ("home", "tmp", "work"):
            (place / name).mkdir()
        self.work = place / "work"
        self.environment = {
            "PATH": f"{JOBQ.parent}:{os.environ['PATH']}",
            "HOME": str(place / "home"),
            "TMPDIR": str(place / "tmp"),
            "LC_ALL": "C.UTF-8",
            "JOBQ_ALLOW_SHORT_LEASE": "1",
            "JOBQ_SCHEDULED_EVENTS": "off",
            "BLACKBOX": self.mark,
        }

    def jobq(self, *words: str, code: int = 0, text: str = "", **variables: str) -> str:
        """Run a command to its end, hold it to its exit code, and return what it printed."""
        done = subprocess.run(
            [JOBQ, *words],
            input=text.encode(),
            cwd=self.work,
            env=self.environment | variables,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}: {done.stdout!r} {done.stderr.decode()}"
        return done.stdout.decode()

    def objects(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        """Return the objects that a command prints with `--json`."""
        return [json.loads(line) for line in self.jobq(*words, "--json", code=code).splitlines()]

    def push(self, *words: str) -> str:
        """Queue one task, which carries the mark of tasks; return its id."""
        return self.jobq("q", "push", "--ids", "--env", f"BLACKBOX_TASK={self.mark}", *words).strip()

    def start(self, *words: str, **variables: str) -> "subprocess.Popen[bytes]":
        """Begin a command; what it prints goes into the files `out` and `err` of the work folder."""
        with (self.work / "out").open("ab") as out, (self.work / "err").open("ab") as err:
            environment = self.environment | variables
            process = subprocess.Popen(
                [JOBQ, *words], cwd=self.work, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        self.started.append(process)
        return process

    def ends(self, process: "subprocess.Popen[bytes]", code: int) -> None:
        """Wait for its end, which has this exit code."""
        assert process.wait(PATIENCE) == code, (self.work / "err").read_text()

    def works_until(self, name: str, count: int, *options: str) -> None:
        """Have a worker run tasks until they have written so many lines; then it ends with what it has under way."""
        worker = self.start("q", "worker", "--idle-timeout", "1m", *options)
        self.has(name, count)
        worker.send_signal(signal.SIGUSR1)
        self.ends(worker, 0)

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file that tasks write; none where it is not there yet."""
        file = self.work / name
        return file.read_text().splitlines() if file.exists() else []

    def has(self, name: str, count: int = 1) -> None:
        """Wait until tasks have written so many lines into a file."""
        until(lambda: len(self.lines(name)) >= count, f"{count} lines in {name}")

    def tasks(self) -> set[int]:
        """Return the processes of tasks that live."""
        return living(f"BLACKBOX_TASK={self.mark}")

    def others(self) -> set[int]:
        """Return the processes of jobq that live: all but those of tasks."""
        return living(f"BLACKBOX={self.mark}") - self.tasks()

    def close(self) -> None:
        """End what is left and remove the folder; fail where jobq had left a process."""
        is_over = all(process.poll() is not None for process in self.started)
        try:
            if is_over:
                until(lambda: not living(f"BLACKBOX={self.mark}"), "no process is left", 15)
        finally:
            while left := living(f"BLACKBOX={self.mark}"):
                kill(left)
            for process in self.started:
                process.wait(PATIENCE)
            shutil.rmtree(self.place, ignore_errors=True)  # a process that has just been killed may have written


def living(entry: str) -> set[int]:
    """Return the processes with this entry in their environment; the dead have none."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                held = (folder / "environ").read_bytes()
            except OSError:  # gone meanwhile, or of another user
                continue
            if entry.encode() in held.split(b"\0"):
                found.add(int(folder.name))
    return found


def kill(processes: set[int]) -> None:
    """Kill these, at once."""
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:  # it ended by itself
            continue
