"""`python -P -m tests.guardian.launch [OPTIONS] -- CMD ...`: what `jobq worker` does, with CMD in the worker's place.

--tick SECONDS                       of the watcher
--restart N, --first-pause SECONDS   of the guardian
--guardian                           CMD takes the guardian's place instead
"""

import os
import signal
import sys

from jobq.run.process import kernel
from jobq.run.spawn.launch import launch


def main(arguments: list[str]) -> None:
    end = arguments.index("--")
    options, command = arguments[:end], arguments[end + 1 :]
    watcher = options[: 2 * (options[:1] == ["--tick"])]
    if options[len(watcher) :] == ["--guardian"]:
        watch(watcher, command)
    connection = launch([*options[len(watcher) :], "--", *command], watcher)
    connection.set_inheritable(True)
    kernel.default_signals(worker=True)
    os.environ["JOBQ_GUARDIAN_FD"] = str(connection.detach())
    os.execvp(command[0], command)


def watch(options: list[str], command: list[str]) -> None:
    """Become the watcher of a command."""
    signal.pthread_sigmask(signal.SIG_BLOCK, kernel.FORWARDED)
    seen, told = os.pipe()
    os.set_blocking(seen, False)
    if pid := os.fork():
        os.set_inheritable(seen, True)
        watcher = [sys.executable, "-P", "-m", "jobq.run.watcher", *options, "--", str(seen), str(pid)]
        os.execv(sys.executable, watcher)
    os.setpgid(0, 0)
    os.set_inheritable(told, True)
    os.execve(command[0], command, {**os.environ, "JOBQ_WATCHER_FD": str(told)})


if __name__ == "__main__":
    main(sys.argv[1:])
