"""How the guardian starts a task: the child arms, connects, and executes or ends (P2).

A task is started by the launcher, a small program in C (`launcher.c`), where there is one: it takes a third of the
CPU of a fork of Python. Elsewhere the guardian forks, and `become` does the same.
"""

import os

from jobq.run.guardian.protocol import Message
from jobq.run.process import kernel


def launch_task(launcher: str, message: Message, stdout: int, stderr: int, report: int) -> int:
    """Return the number of a leader, which leads its session by now; for the arguments see `become`.

    Raises:
        OSError: there is no process to be had, the task is too large, or the launcher cannot be executed.
        ValueError, NotImplementedError: Python cannot hand it over.
    """
    cwd = "" if message["cwd"] is None else f"={message['cwd']}"
    copies = ((stdout, 1), (stderr, 2), (report, 3))
    return os.posix_spawn(
        launcher,
        [launcher, str(os.getpid()), cwd, *message["argv"]],
        message["env"],
        file_actions=[
            *((os.POSIX_SPAWN_DUP2, source, target) for source, target in copies),
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=kernel.RESET_AT_EXEC,
    )


def fork_task(message: Message, stdout: int, stderr: int, report: int) -> int:
    """Return the number of a leader. Raises OSError."""
    guardian = os.getpid()
    if (pid := kernel.fork()) == 0:
        become(message, stdout, stderr, report, guardian)
    return pid


def become(message: Message, stdout: int, stderr: int, report: int, guardian: int) -> None:
    """In the child: arm, connect, execute; never returns.

    Args:
        message: what to execute.
        stdout: to be its standard output.
        stderr: to be its standard error.
        report: where to write why it does not execute.
        guardian: the number of our parent.
    """
    stage = "program"
    try:
        os.setsid()
        kernel.become_subreaper()
        kernel.die_with_parent()
        if os.getppid() != guardian:
            os._exit(127)  # the guardian died before this process was armed
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        # All that is not the task's: also the connection, before a slow chdir can hold it open.
        kernel.close_from(3, report)
        kernel.default_signals()
        if message["cwd"] is not None:
            stage = "cwd"
            os.chdir(message["cwd"])
            stage = "program"
        os.execvpe(message["argv"][0], message["argv"], message["env"])  # noqa: S606 - what a worker is for
    except OSError as error:
        os.write(report, f"{stage}:{error.errno or 0}".encode("ascii"))
    except BaseException:  # noqa: BLE001 - a child must not run on as a second guardian
        os.write(report, f"{stage}:0".encode("ascii"))
    os._exit(127)
