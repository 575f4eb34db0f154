"""The worker's side of the guardian: a `Spawner` whose tasks another process forks, watches and reaps."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final, Self

from jobq.errors import ConfigurationError
from jobq.run.guardian import protocol
from jobq.run.guardian.control_group import ControlGroup
from jobq.run.guardian.protocol import Message, Receiver, Sender, WireError
from jobq.run.process import OUR_PYTHON
from jobq.run.process.environment import start_environment
from jobq.run.process.spawner import Launch, Process, StatusLost, start_failed
from jobq.run.spawn import containment, launchers, pings
from jobq.run.spawn.dead_workers import holder_of
from jobq.run.spawn.guarded_process import GuardedProcess, refuse_unsendable
from jobq.run.spawn.guardian_handle import GuardianHandle, finished
from jobq.run.spawn.survivors import SECONDS, WORKER_ID_VARIABLE, kill_all_of

FD_VARIABLE: Final = "JOBQ_GUARDIAN_FD"
HELLO_SECONDS: Final = 10.0
ENDING_SECONDS: Final = 5.0
SPAWNS_IN_FLIGHT: Final = 16  # what moves a deadline must not wait behind thousands of starts (P1)
_log: Final = logging.getLogger(__name__)
_entered: Final[weakref.WeakSet["GuardianSpawner"]] = weakref.WeakSet()


def inherited_connection() -> socket.socket | None:
    """Return the socket to the guardian that started this process, once; None = none did.

    Raises:
        ConfigurationError: something else has set the variable.
    """
    descriptor = os.environ.pop(FD_VARIABLE, None)
    if descriptor is None:
        return None
    try:
        connection = socket.socket(fileno=int(descriptor))
    except (ValueError, OSError):
        raise ConfigurationError(
            f"{FD_VARIABLE} is for what jobq starts itself, and {descriptor!a} is no socket of a guardian: unset it"
        ) from None
    connection.set_inheritable(False)
    return connection


class GuardianSpawner:
    """Starts tasks through a guardian, so that they die with their lease and with this process (P1 to P5).

    Args:
        connection: the socket to the guardian that is our parent (`inherited_connection`); None = start one as our
            child, which is what a program that embeds jobq gets.
        on_guardian_lost: called on a thread of its own when the guardian has died and all that was left of its tasks
            is killed.
        contained: JOBQ_CONTAINMENT: what is to hold the tasks together for the kernel.
        launcher: JOBQ_LAUNCHER: what is to start them, where the guardian is ours.
        handle: what is done about the guardian as a process.
        ping_seconds: from one question whether the guardian lives to the next.

    Attributes:
        lost: set when the guardian is gone: nothing can be started any more.
        contained_by: what holds the tasks together: "cgroup", or "off" for nothing.

    Raises:
        ConfigurationError: on entering, when there is no guardian to be had, or not what is to hold the tasks together.
    """

    def __init__(
        self,
        connection: socket.socket | None = None,
        *,
        on_guardian_lost: Callable[[], None] | None = None,
        contained: containment.Asked = "auto",
        launcher: launchers.Asked = "auto",
        handle: GuardianHandle | None = None,
        ping_seconds: float = pings.SECONDS,
    ) -> None:
        self._connection = connection
        self._on_guardian_lost = on_guardian_lost
        self._child: subprocess.Popen[bytes] | None = None
        self._handle = handle or GuardianHandle()
        self._numbers = 0
        self._tasks: dict[int, GuardedProcess] = {}
        self._survived: dict[int, GuardedProcess] = {}  # their ends were reported, and something of them may live
        self._environment: dict[str, str] = {}  # of the last spawn that was sent
        self._in_flight = asyncio.Semaphore(SPAWNS_IN_FLIGHT)
        self._open = False
        self._contained = contained
        self._launcher: launchers.Asked = launcher
        self.contained_by = containment.NONE
        self.lost = asyncio.Event()
        self._lost: str | None = None
        self._pings = pings.Pings(self.send, self._handle.signal, self._lose, ping_seconds)

    @property
    def worker_id(self) -> str:
        """What its tasks carry, once it is entered; see `dead_workers`."""
        return self._handle.worker_id

    @property
    def holder(self) -> str:
        """Who holds the leases, for others to judge; empty where nothing holds the tasks together."""
        return "" if self.contained_by == containment.NONE else holder_of(self.worker_id)

    async def __aenter__(self) -> Self:
        if not hasattr(os, "pidfd_open"):
            raise ConfigurationError("the guardian needs Linux 5.3 or newer; use the asyncio spawner")
        if self._connection is None:
            options = containment.guardian_options(self._contained)
            self._connection, self._child = _start_guardian([*options, *launchers.guardian_options(self._launcher)])
            self._handle.group = ControlGroup(options[1] if "--group" in options else "")  # also of one that is silent
        elif killed := await self._handle.kill_what_dead_workers_left():
            _log.warning("%d processes that a worker left when it was killed with its watcher are killed", killed)
        self._handle.name_worker(os.getppid() if self._child is None else self._child.pid)
        self._loop = asyncio.get_running_loop()
        self._connection.setblocking(False)
        self._receiver = Receiver(self._connection, protocol.HANDLE_DESCRIPTORS)
        self._sender = Sender(self._connection)
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._connection, self._read)
        self._open = True
        _entered.add(self)
        try:
            self._handle.watch(self._connection, self._on_guardian_lost)
            # `asyncio.timeout` would drop a word that came while this process was stopped or the loop was blocked.
            await asyncio.wait([self._hello], timeout=HELLO_SECONDS)
            if not self._hello.done():
                raise ConfigurationError(
                    f"the guardian said nothing for {HELLO_SECONDS:g} s; is the machine overloaded?"
                )
            self._hello.result()
            self._pings.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._open = False
        waiting = [process.ended for process in self._tasks.values()]
        for process in list(self._tasks.values()):
            process.kill()
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=ENDING_SECONDS)
        finally:
            self._close()
            if self._lost is not None:  # a thread kills what is left, and would end with this process
                await self._handle.wait_until_nothing_is_left()
            if self._child is not None:
                await finished(partial(self._end, self._child))

    def disown(self) -> None:
        """In a forked child: guardian and tasks are its parent's, and what unwinds here tells them nothing (S11)."""
        self._open, self._lost, self._child = False, "this process was forked from the guardian's worker", None
        self._handle.close()
        for process in self._tasks.values():
            process.disown()
        self._tasks.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def keep_stores_clock(self) -> None:
        """Have deadlines kept by the clock of a store on this machine (`jobq.clock.StoreClock`), for good."""
        self.send({"op": "clock", "id": 0})

    async def spawn(self, launch: Launch) -> Process:
        """Start a task; return once its program runs. Raises StartFailed, StatusLost."""
        if not self._open:
            raise RuntimeError("the spawner is not open: use it as `async with`")
        async with self._in_flight:
            self._numbers += 1
            process = GuardedProcess(self.send, self._numbers, launch.cwd, launch.on_gone)
            try:
                self._ask_to_start(process, launch)
                failure = await asyncio.shield(process.started)
            except (OSError, ValueError) as error:
                process.is_gone()  # nothing was asked of the guardian
                raise start_failed(launch, error) from error
            except BaseException:
                process.kill()  # its start may be under way: nobody waits for it any more, so it must not live
                # Until it is dead it needs its slot (S11).
                await asyncio.wait({process.ended}, timeout=ENDING_SECONDS)
                raise
        if isinstance(failure, StatusLost):
            raise failure
        if failure is not None and failure.errno == errno.ECANCELED:
            raise StatusLost("its lease ended before it could be started")
        if failure is not None:
            raise start_failed(launch, failure) from failure
        return process

    def _ask_to_start(self, process: GuardedProcess, launch: Launch) -> None:
        """Send what it takes to start a task. Raises OSError, and ValueError where exec would refuse its strings."""
        if self._lost is not None:
            raise OSError(errno.EIO, f"the guardian is gone: {self._lost}")
        environment = {**launch.env, WORKER_ID_VARIABLE: self.worker_id}
        changed, unset = protocol.difference(self._environment, environment)
        refuse_unsendable([*launch.argv, launch.cwd or "", *changed.values()], changed)
        message = {
            "op": "spawn",
            "id": process.number,
            "argv": list(launch.argv),
            "env": changed,
            "unset": unset,
            "cwd": launch.cwd,
            "deadline": None if launch.deadline is None else launch.deadline.boottime,
        }
        stdout = os.dup(launch.stdout)  # the caller may close its own while the message still waits
        try:
            stderr = os.dup(launch.stderr)
        except OSError:
            os.close(stdout)
            raise
        self._tasks[process.number] = process
        try:
            self.send(message, (stdout, stderr))
        except WireError:
            del self._tasks[process.number]
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG)) from None
        self._environment = environment  # not before: the guardian has it now
        if launch.deadline is not None:
            launch.deadline.enforced_by(process.extend)  # from now on, however long the start takes

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message; one to a guardian that is gone is dropped, its tasks are dead or dying."""
        if self._lost is not None or self._connection is None:
            protocol.close_all(descriptors)
            return
        try:
            self._sender.send(message, descriptors)
        except OSError as error:
            self._lose(f"{error}")
        else:
            self._watch_writable()

    def _watch_writable(self) -> None:
        assert self._connection is not None
        if self._sender.waiting:
            self._loop.add_writer(self._connection, self._flush)
        else:
            self._loop.remove_writer(self._connection)

    def _flush(self) -> None:
        try:
            self._sender.flush()
        except OSError as error:
            self._lose(f"{error}")
        else:
            self._watch_writable()

    def _read(self) -> None:
        if self._connection is None:
            return
        try:
            if not self._receiver.read():
                self._lose("it has ended")
                return
            while (message := self._receiver.next()) is not None:
                self._hear(message)
        except (OSError, WireError, LookupError, TypeError, ValueError, asyncio.InvalidStateError) as error:
            self._lose(f"{error!r}")

    def _hear(self, message: Message) -> None:
        self._pings.is_answered()
        if message["op"] == "pong":
            return
        if message["op"] == "hello":
            if message["version"] != protocol.VERSION:
                raise WireError(f"guardian of version {message['version']}, expected {protocol.VERSION}")
            if not self._hello.done():
                self._handle.aim_at(message["pid"])
                self._note_containment(message)
            return
        self._hear_of_task(message)

    def _hear_of_task(self, message: Message) -> None:
        if message["op"] == "gone":
            self._survived.pop(message["id"]).is_gone()
            return
        process = self._tasks[message["id"]]
        match message["op"]:
            case "started":
                pidfd = self._receiver.take_descriptors()[0] if message["handle"] else protocol.LOST
                process.has_started(message["pid"], pidfd)
            case "failed":
                del self._tasks[process.number]
                process.has_failed(message["errno"], message["at"])
            case "ended":
                del self._tasks[process.number]
                if message["survivors"]:
                    self._survived[process.number] = process
                process.has_ended(message)
            case other:
                raise WireError(f"unknown message {other!r}")

    def _note_containment(self, hello: Message) -> None:
        self._handle.group = ControlGroup(hello.get("group", ""))
        if self._handle.group.path:
            self.contained_by = containment.CGROUP
        try:
            containment.check(self._contained, containment.ContainmentInUse(self.contained_by, hello.get("why", "")))
        except ConfigurationError as error:
            self._hello.set_exception(error)
        else:
            self._hello.set_result(None)

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
            self.lost.set()  # first: who hears that a task ended so must take no other
            _log.error("the guardian is gone (%s): its tasks are killed", why)
            self._close(lost=True)

    def _close(self, *, lost: bool = False) -> None:
        """Let go of the connection and of every task; the lifeline goes on by itself when the guardian was lost."""
        why = self._lost or "the spawner was left"
        if not self._hello.done():
            self._hello.set_exception(ConfigurationError(f"the guardian could not be started: {why}"))
            self._hello.exception()  # counts as seen: there may be no waiter
        self._pings.stop()
        self._handle.close()
        for process in list(self._tasks.values()):
            process.is_lost(why)
        self._tasks.clear()
        if self._connection is None:
            return
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._receiver.close_descriptors()
        self._sender.close()
        if lost:
            with contextlib.suppress(OSError):  # one that talks nonsense still lives: it must kill what it guards
                self._connection.shutdown(socket.SHUT_RDWR)
        else:
            self._handle.let_go()
        self._connection.close()
        self._connection = None

    def _end(self, guardian: "subprocess.Popen[bytes]") -> None:
        """Wait for a guardian that was let go; one that is stopped is killed, and takes its leaders along (P2)."""
        try:
            guardian.wait(ENDING_SECONDS + 1)
        except subprocess.TimeoutExpired:
            guardian.kill()
            guardian.wait()
            kill_all_of(self.worker_id)
        self._handle.group.end(SECONDS)


def _disown_inherited() -> None:
    for spawner in tuple(_entered):
        spawner.disown()


os.register_at_fork(after_in_child=_disown_inherited)


def _start_guardian(options: list[str]) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        try:
            child = subprocess.Popen(
                [sys.executable, *OUR_PYTHON, "jobq.run.guardian", *options, "--attached", str(theirs.fileno())],
                env=start_environment(os.environ, "clean"),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # one Ctrl-C of the embedding program is not the guardian's business
            )
        except OSError as error:
            ours.close()
            raise ConfigurationError(f"the guardian could not be started: {error}") from error
    return ours, child
