"""`make demo`: the main job, visibly. Real commands on the embedded queue, and a task that survives kill -9."""

import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

JOBQ = [sys.executable, "-m", "jobq"]
PATIENCE_SECONDS = 60.0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jobq-demo-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
        environment |= {"JOBQ_HOME": folder, "JOBQ_LOG_FORMAT": "text"}
        run_some_commands(environment)
        survive_a_kill(environment, Path(folder))


def run_some_commands(environment: dict[str, str]) -> None:
    title("1. Push a handful of commands, then work until the queue is empty")
    library = shlex.quote(sysconfig.get_path("stdlib"))
    commands = [
        f"find {library} -maxdepth 1 -name '*.py' | wc -l",
        "python3 -c 'print(sum(n for n in range(1000) if n % 3 == 0))'",
        f"cat {library}/json/*.py | sha256sum | cut -c1-16",
        'for step in 1 2 3; do echo "step $step"; sleep 0.2; done',
        'echo "task $JOBQ_TASK_ID, attempt $JOBQ_ATTEMPT, fencing number $JOBQ_LEASE_TOKEN"',
    ]
    jobq(environment, "demo", "push", *(word for command in commands for word in ("-c", command)))
    jobq(environment, "demo", "size")
    jobq(environment, "demo", "worker", "-n", "2")


def survive_a_kill(environment: dict[str, str], folder: Path) -> None:
    title("2. A task survives the kill -9 of its worker")
    started = folder / "started"
    jobq(environment, "demo", "push", "-c", f"echo attempt $JOBQ_ATTEMPT; touch {started}; sleep 3; echo survived")
    arguments = ["demo", "worker", "--visibility-timeout", "10s"]
    show(arguments)
    victim = subprocess.Popen([*JOBQ, *arguments], env=environment, stderr=subprocess.PIPE)
    log = threading.Thread(target=show_log, args=(victim.stderr,))
    log.start()
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not started.exists():
        if victim.poll() is not None or time.monotonic() > give_up:
            sys.exit("the worker ended before the task began")
        time.sleep(0.05)
    print(f"\n$ kill -9 {victim.pid}    # the worker vanishes in the middle of the task", flush=True)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    log.join(PATIENCE_SECONDS)  # its log ends with the last of its processes
    if log.is_alive():
        sys.exit("something of the worker outlives it")
    jobq(environment, "demo", "size")
    print("\nThe next worker runs it again: at once where the kernel shows that nothing of that one lives", flush=True)
    print("(a control group: docs/guarantees.md), else when its lease of 10 s has run out.", flush=True)
    jobq(environment, *arguments)
    jobq(environment, "demo", "size")
    program = os.path.relpath(Path(sys.executable).with_name("jobq"))
    print(f"\nThat was jobq. Yours: {program} demo push -c 'echo hello' && {program} demo worker")


def show_log(log: IO[bytes]) -> None:
    for line in log:
        sys.stderr.buffer.write(line)
        sys.stderr.flush()


def jobq(environment: dict[str, str], *arguments: str) -> None:
    show(list(arguments))
    code = subprocess.run([*JOBQ, *arguments], env=environment, check=False).returncode
    if code:
        sys.exit(f"jobq ended with exit code {code}")


def show(arguments: list[str]) -> None:
    print(f"\n$ jobq {shlex.join(arguments)}", flush=True)


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


if __name__ == "__main__":
    main()
