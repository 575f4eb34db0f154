"""`python -P -m jobq.run.guardian`: how the guardian starts. Internal; `jobq worker` and the library start it.

    OPTIONS --attached FD      guard the process that made the socket FD and started us; ends when that ends
    OPTIONS -- CMD ...         start CMD as the worker, with JOBQ_GUARDIAN_FD, pass signals on to it, end as it ends

Options, each with a value:

    --restart N                when the worker dies by a signal start it again, N times at most, after a growing pause;
                               it then has JOBQ_GUARDIAN_RESTARTED=1: tasks of its predecessor may still be leased
    --first-pause SECONDS      the first of these pauses, for tests
    --worker PID --connection FD
                               the first worker is this child already, and FD our end of its socket
    --withheld FD              what it is started without, see `jobq.run.withheld`; it has JOBQ_WITHHELD_FD when it is
                               started again
    --group PATH               make this control group, and be in it with all tasks (cgroups(7), v2)
    --launcher PATH            have this program become the leaders of tasks, where that can be (launcher.c)
    --stop-within SECONDS      kill a worker that has not ended so long after SIGTERM, SIGHUP or SIGINT (30)

JOBQ_WATCHER_FD in the environment is a pipe for signs of life to the process that watches this one: see
`jobq.run.watcher`.

CMD starts with SIGTERM, SIGHUP, SIGINT and SIGUSR1 blocked: what comes while it imports waits in the kernel. It
unblocks them once it can obey.
"""

import gc
import os
import select
import socket
import sys
import time

from jobq.run import withheld
from jobq.run.guardian.control_group import ControlGroup
from jobq.run.guardian.heartbeat import SECONDS as HEARTBEAT_SECONDS
from jobq.run.guardian.heartbeat import Heartbeat
from jobq.run.guardian.loop import Guardian
from jobq.run.guardian.system import System
from jobq.run.process import kernel
from jobq.run.process.kernel import SignalPipe, say

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
STOP_WITHIN_SECONDS = 30.0  # for the stop grace, to kill and to give back
USAGE = 2  # architecture 12
GROUP_SECONDS = 1.0  # for what was killed in vain until now to leave the control group


def start_worker(
    command: list[str], environment: dict[str, str], rest: int, group: ControlGroup
) -> tuple[int, socket.socket]:
    """Fork the worker into a process group of its own, tied to this process; return its number and our socket.

    Args:
        command: starts it.
        environment: variables beside ours.
        rest: a file with those that it gets later; -1 = there is none.
        group: the control group that this process is in.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    guardian = os.getpid()
    pid = kernel.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)  # one Ctrl-C counts once: the terminal signals the guardian, which signals us
            # No PDEATHSIG here: a worker whose guardian dies has to kill what left its leaders' trees, and then itself.
            if os.getppid() == guardian:
                os.set_inheritable(theirs.fileno(), True)
                group.leave()  # who finds us dead kills all that is in it, and it is us who may
                kernel.default_signals(worker=True)
                kernel.ignore_terminal()
                environment = {**os.environ, **environment, "JOBQ_GUARDIAN_FD": str(theirs.fileno())}
                if rest >= 0:
                    environment[withheld.VARIABLE] = str(withheld.send_by_socket(rest))
                os.execvpe(command[0], command, environment)  # noqa: S606 - the user's own command line
        except OSError as error:
            say(f"cannot start {command[0]}: {error.strerror}")
        finally:
            os._exit(127)
    theirs.close()
    return pid, ours


def guard_worker(
    first: tuple[int, int] | None,
    command: list[str],
    restarts: int,
    pause: float,
    stop_within: float,
    rest: int,
    group: ControlGroup,
    system: System,
) -> int:
    """Guard the worker, and start it again when it dies by a signal.

    Args:
        first: its number and our socket to it; None = it has yet to be started.
        command: starts it.
        restarts: how often.
        pause: seconds before the first start after a death.
        stop_within: seconds that it may take to end.
        rest: see `start_worker`.
        group: the control group that this process is in.
        system: the kernel.

    Returns:
        Its code, 128+n when it died by signal n.
    """
    signals = SignalPipe()
    heartbeat = Heartbeat(int(os.environ.pop("JOBQ_WATCHER_FD", "-1")))
    strangers = frozenset(kernel.children())
    environment: dict[str, str] = {}
    while True:
        if first is not None:
            worker, connection = first[0], socket.socket(fileno=first[1])
            strangers -= {worker}
            connection.set_inheritable(False)
            first = None
        else:
            worker, connection = start_worker(command, environment, rest, group)
        guardian = Guardian(
            connection,
            signals,
            worker,
            heartbeat,
            stop_within,
            strangers & frozenset(kernel.children()),
            group,
            system,
        )
        code = os.waitstatus_to_exitcode(guardian.run() or 0)
        if code >= 0:
            return code
        if restarts <= 0 or guardian.asked_to_stop:
            if not guardian.has_said_why:
                say(f"the worker died by signal {-code}; what it ran died too, and comes back when its leases run out")
            return 128 - code
        restarts -= 1
        say(f"the worker died by signal {-code}; next start in {pause:g} s")
        if _is_asked_to_stop(signals, heartbeat, pause):
            return 128 - code
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        environment = {"JOBQ_GUARDIAN_RESTARTED": "1"}


def _is_asked_to_stop(signals: SignalPipe, heartbeat: Heartbeat, seconds: float) -> bool:
    """Wait; return at once, and True, at a signal that the worker would have got, and at the watcher's death."""
    end = time.monotonic() + seconds
    poll = select.poll()
    poll.register(signals, select.POLLIN)
    heartbeat.register(poll)
    while (left := end - time.monotonic()) > 0:
        heartbeat.beat()
        events = dict(poll.poll(min(left, HEARTBEAT_SECONDS) * 1000))
        if heartbeat.fileno() in events or any(number in kernel.FORWARDED for number in signals.read()):
            return True
    return False


def main(arguments: list[str]) -> int:
    """Guard; return the exit code to end with."""
    kernel.open_standard_descriptors()
    kernel.become_subreaper()
    kernel.hide_from_same_user()
    gc.freeze()  # a fork then shares these pages for good
    options = {
        "--restart": "0",
        "--first-pause": str(FIRST_PAUSE_SECONDS),
        "--stop-within": str(STOP_WITHIN_SECONDS),
        "--worker": "0",
        "--connection": "-1",
        "--withheld": "-1",
        "--group": "",
        "--launcher": "",
    }
    while len(arguments) > 1 and arguments[0] in options:
        options[arguments[0]] = arguments[1]
        arguments = arguments[2:]
    is_attached = len(arguments) == 2 and arguments[0] == "--attached"  # noqa: PLR2004 - a flag and its value
    if not is_attached and (arguments[:1] != ["--"] or not arguments[1:]):
        say("usage: python -P -m jobq.run.guardian [--restart N] [--stop-within SECONDS] -- CMD ...")
        return USAGE
    group = ControlGroup(options["--group"])
    system = System(options["--launcher"])
    group.enter()
    try:
        if is_attached:
            Guardian(socket.socket(fileno=int(arguments[1])), SignalPipe(), None, group=group, system=system).run()
            return 0
        worker, rest = int(options["--worker"]), int(options["--withheld"])
        return guard_worker(
            (worker, int(options["--connection"])) if worker else None,
            arguments[1:],
            int(options["--restart"]),
            float(options["--first-pause"]),
            float(options["--stop-within"]),
            rest if rest < 0 else withheld.receive_file(rest),
            group,
            system,
        )
    finally:
        if group.leave():  # else who watches us ends it, or the next worker to start
            group.end(GROUP_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
