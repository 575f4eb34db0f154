"""The guardian forks: a task, or the zygote; and what these do before exec: arm, connect, execute, or end (P2)."""

import os
import sys

from jobq.run.guardian import kernel
from jobq.run.guardian.kernel import say
from jobq.run.guardian.protocol import Message

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    from jobq.run.guardian.pid_namespaces import PidNamespaces


def fork_task(
    message: Message, stdout: int, stderr: int, report: int, namespaces: "PidNamespaces | None"
) -> tuple[int, int]:
    """Return the numbers of a leader and of its namespace's init, 0 = it is in ours. Raises OSError."""
    if namespaces is None:
        me = os.getpid()
        if (pid := kernel.fork()) == 0:
            become(message, stdout, stderr, report, me)
        return pid, 0
    try:
        init = namespaces.enter()  # without a leader it is a stray
        if (pid := kernel.fork()) == 0:
            become(message, stdout, stderr, report, None)
    finally:
        namespaces.leave()
    return pid, init


def become(message: Message, stdout: int, stderr: int, report: int, guardian: int | None) -> None:
    """In the child: arm, connect, execute; never returns.

    Args:
        message: what to execute.
        stdout: to be its standard output.
        stderr: to be its standard error.
        report: where to write why it does not execute.
        guardian: the number of our parent; None = this is a PID namespace of the task's, whose init sees to that.
    """
    stage = "program"
    try:
        os.setsid()
        kernel.become_subreaper()
        kernel.die_with_parent()
        if guardian is None:
            from jobq.run.guardian.pid_namespaces import show_own_processes  # noqa: PLC0415 - it is there by now

            show_own_processes()
        elif os.getppid() != guardian:
            os._exit(127)  # the guardian died before this process was armed
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        # All that is not the task's: also the connection, before a slow chdir can hold it open.
        os.closerange(3, report)
        os.closerange(report + 1, max(report + 2, os.sysconf("SC_OPEN_MAX")))
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


def fork_zygote(message: Message, connection: int) -> int:
    """Fork and execute the zygote, tied to this process; return its number. Raises OSError."""
    guardian = os.getpid()
    pid = kernel.fork()
    if pid != 0:
        return pid
    try:
        os.setsid()
        kernel.die_with_parent()
        if os.getppid() == guardian:
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(2, 1)  # what imports print is no task's output
            os.set_inheritable(connection, True)
            os.closerange(3, connection)
            os.closerange(connection + 1, max(connection + 2, os.sysconf("SC_OPEN_MAX")))
            kernel.default_signals()
            command = [sys.executable, "-P", "-m", "jobq.run.guardian.zygote", str(connection), *message["modules"]]
            os.execve(sys.executable, command, message["env"])  # noqa: S606 - ourselves
    except BaseException as error:  # noqa: BLE001 - a child must not run on as a second guardian
        say(f"cannot start the zygote: {error}")
    os._exit(127)
