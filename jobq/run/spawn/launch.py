"""How one process becomes three (architecture 6): the watcher, its guardian, and the worker, which goes on in Python.

The worker is forked, not started: what the command line has imported by then is a third of a worker's start.
"""

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from jobq.run import withheld
from jobq.run.process import OBEYED, OUR_PYTHON


def launch(
    guardian: Sequence[str], watcher: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> socket.socket:
    """Fork guardian and worker, become the watcher, and return in the worker; raises OSError where that is refused.

    Whichever of the three dies meanwhile, the others end as they would later: the guardian at the watcher's end, the
    worker at the guardian's, and what they leave falls to a process that is a subreaper already.

    Args:
        guardian: options of `jobq.run.guardian`, and the command that starts the worker again.
        watcher: options of `jobq.run.watcher`.
        environment: those of our variables that watcher and guardian are started with, and a worker that is started
            again; that gets the rest later.

    Returns:
        The worker's connection to its guardian.
    """
    from jobq.run.process import kernel  # noqa: PLC0415 - Linux alone has what it imports

    sys.stdout.flush()
    sys.stderr.flush()
    kernel.open_standard_descriptors()
    kernel.become_subreaper()
    kernel.hide_from_same_user()
    signal.pthread_sigmask(signal.SIG_BLOCK, kernel.FORWARDED)  # what comes before they can listen waits in the kernel
    strangers = kernel.children()  # `exec jobq worker` keeps those of a shell
    python = [sys.executable, *OUR_PYTHON]
    seen, signs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # the guardian's signs of life
    me = os.getpid()
    if child := os.fork():
        os.set_inheritable(seen, True)
        command = [*python, "jobq.run.watcher", *watcher, "--", *map(str, (seen, child, *strangers))]
        os.execve(sys.executable, command, environment)  # noqa: S606 - ourselves
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.setpgid(0, 0)  # so that no kill of a group takes watcher and guardian
        kernel.continue_with_parent()
        if os.getppid() != me:
            os._exit(127)
        if worker := os.fork():
            kernel.default_signals(worker=True)
            signal.pthread_sigmask(signal.SIG_BLOCK, kernel.FORWARDED)
            for descriptor in (signs, ours.fileno()):
                os.set_inheritable(descriptor, True)
            rest = {name: value for name, value in os.environ.items() if name and environment.get(name) != value}
            adopted = [
                *("--worker", str(worker), "--connection", str(ours.fileno())),
                *("--withheld", str(withheld.send_by_socket(withheld.write_file(rest)))),
            ]
            os.execve(  # noqa: S606 - ourselves
                sys.executable,
                [*python, "jobq.run.guardian", *adopted, *guardian],
                {**environment, "JOBQ_WATCHER_FD": str(signs)},
            )
        os.setpgid(0, 0)  # one Ctrl-C counts once: the terminal signals the watcher
        kernel.ignore_terminal()
        for number in (signal.SIGCHLD, signal.SIGQUIT, signal.SIGUSR2):  # the `&` of a script ignores SIGQUIT
            signal.signal(number, signal.SIG_DFL)  # as for one that the guardian starts again
        signal.pthread_sigmask(signal.SIG_SETMASK, OBEYED)  # for which it has no handlers yet
    except OSError as error:
        with suppress(OSError):
            kernel.say(f"cannot start: {error.strerror}")
        os._exit(127)
    for descriptor in (seen, signs, ours.detach()):
        os.close(descriptor)
    if not sys.flags.safe_path:
        del sys.path[0]  # nothing more is imported from the folder that a user happens to be in
    return theirs
