"""How the guardian starts a task: the child arms, connects, and executes or ends (P2).

A task is started by the launcher, a small program in C (`launcher.c`), where there is one: it takes a third of the
CPU of a fork of Python. Elsewhere, and for a task of another user, the guardian forks, and `become` does the same.
"""

import contextlib
import errno
import os
import resource
import signal
import stat

from jobq.run.guardian.protocol import Message
from jobq.run.process import kernel

_MOST_BLOWS = 100  # of one attempt, where other guardians' hit ours


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
        if message.get("user") is not None:
            _become_user(message["user"], (stdout, stderr))
        kernel.die_with_parent()  # which a change of user would undo
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


def _become_user(user: Message, outputs: tuple[int, int]) -> None:
    """Run on as another user, for good (docs/deployment.md)."""
    for output in outputs:
        if stat.S_ISFIFO(os.fstat(output).st_mode):  # the worker's own; what writes to /dev/stdout opens it anew
            os.fchown(output, user["uid"], user["gid"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if user["processes"] is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (user["processes"], user["processes"]))
    os.umask(0o077)
    os.setgroups([])
    os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])
    kernel.gain_no_privileges()


def kill_all_of_user(uid: int) -> None:
    """Kill whatever runs as this user, at one blow: as that user, which spares who sends it alone (kill(2)).

    Raises:
        OSError: no process could be had for it, or none that may become that user and no more than that.
    """
    for _ in range(_MOST_BLOWS):
        if not os.WIFSIGNALED(status := _blow(uid)):
            break  # else that of another guardian has hit it, which is nobody's, too: a blow for another user
    if status:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def _blow(uid: int) -> int:
    """Kill whatever runs as this user, from a process that ends by that; return its status."""
    pid = kernel.fork()
    if pid == 0:
        code = 1
        try:
            # Who is killed must not be able to kill or stop this process.
            os.setresuid(kernel.NOBODYS, uid, kernel.NOBODYS)
            if 0 not in os.getresuid() and os.geteuid() == uid and not kernel.capabilities():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
                code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]
