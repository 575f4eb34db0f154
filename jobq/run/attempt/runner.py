"""What runs: one started attempt behind one small protocol, and the runner of commands; callbacks have their own."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from jobq.backend import Delivery
from jobq.formats import strict_json
from jobq.formats.checkpoint_format import StoredCheckpoint
from jobq.lease.keeper import LeaseKeeper
from jobq.run.attempt.checkpoints import Archives, AttemptCheckpoints
from jobq.run.attempt.command_attempt import CommandRunning
from jobq.run.attempt.task_grants import TaskGrants
from jobq.run.attempt.task_socket import TaskSocket
from jobq.run.process.environment import argv_of, inherited_environment, task_environment
from jobq.run.process.log_files import nowhere
from jobq.run.process.log_upload import Sinks
from jobq.run.process.oom import OomCounter, OomWatch
from jobq.run.process.output import OutputReader, StreamName
from jobq.run.process.spawner import Deadline, Launch, OtherKind, Spawner, StartFailed, nothing
from jobq.run.process.task_folder import TaskFolder
from jobq.run.process.usage import UsageSampler
from jobq.settings import Settings
from jobq.task import Outcome, Task
from jobq.task_client import SOCKET_VARIABLE

OnLine = Callable[[str, str, str], None]  # task id, stream, line
OnBytes = Callable[[str, bytes], None]  # task id, whole lines as they came


class MakeReader(Protocol):
    """Makes what reads one attempt's output; see `OutputReader`."""

    def __call__(
        self,
        on_line: Callable[[StreamName, str], None],
        *,
        on_bytes: Mapping[str, Callable[[bytes], None]],
        sink: Callable[[StreamName, bytes], None],
    ) -> OutputReader:
        """Make it; raises OSError when no descriptors are left."""
        ...


class Running(Protocol):
    """One started attempt."""

    async def exited(self) -> None:
        """Wait until nothing of it runs; repeatable. What comes later (a timeout, a stop) did not end it (P7).

        No output is passed on before the first wait: its start has been published by then.
        """
        ...

    def has_exited(self) -> bool:
        """Return whether it has ended by itself by now, even if `exited` has not heard of it yet."""
        ...

    async def ended(self) -> Outcome:
        """Wait until nothing of it runs and its output is read, and say how it ended; repeatable."""
        ...

    def over_limit(self) -> Awaitable[str]:
        """Return what is done once it uses more memory than it may, and says so; it may never be; repeatable."""
        ...

    def terminate(self) -> None:
        """Ask it to end (SIGTERM to the group; cancel for a callback)."""
        ...

    def kill(self) -> None:
        """End it (SIGKILL to the tree; cancel for a callback)."""
        ...

    async def close(self) -> None:
        """Free everything; kills what still runs."""
        ...


class Runner(Protocol):
    """Starts attempts of one kind."""

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> Running:
        """Start an attempt; raises StartFailed when it cannot.

        Args:
            task: what to start.
            delivery: how it came.
            deadline: by when nothing of it may live; it moves meanwhile.
            keeper: keeps the lease, for what wants to know of it.
        """
        ...


class CommandRunner:
    """Runs commands as supervised processes.

    Args:
        spawner: starts and reaps them.
        queue_name: shown to the task.
        settings: decides its environment.
        environment: the worker's own, to inherit from.
        on_line: receives each line of output.
        on_bytes: for a stream that is named here, receives its bytes in place of `on_line`.
        sampler: measures what they use, and finds those over the memory limit.
        folder: where their results are written; closed by its owner.
        line: hears what they have to say; closed by its owner.
        archives: where their files are kept; None = nowhere.
        sinks: take the whole output of each attempt.
        oom: counts what the kernel kills for want of memory.
        grants: what attempts hold of what the worker offers; None = it offers nothing.
        output_reader: makes what reads one attempt's output.
    """

    def __init__(
        self,
        spawner: Spawner,
        *,
        queue_name: str,
        settings: Settings,
        environment: Mapping[str, str],
        on_line: OnLine,
        on_bytes: Mapping[str, OnBytes] | None = None,
        sampler: UsageSampler,
        folder: TaskFolder,
        line: TaskSocket,
        archives: Archives | None = None,
        sinks: Sinks = lambda _id, _attempt: nowhere(),
        oom: OomCounter,
        grants: TaskGrants | None = None,
        output_reader: MakeReader = OutputReader,
    ) -> None:
        self._spawner = spawner
        self._queue_name = queue_name
        self._settings = settings
        self._inherited = inherited_environment(environment, settings.task_env)
        self._on_line = on_line
        self._on_bytes = on_bytes or {}
        self._sampler = sampler
        self._folder = folder
        self._line = line
        self._archives = archives
        self._sinks = sinks
        self._oom = OomWatch(oom)
        self._grants = grants
        self._output_reader = output_reader

    async def start(
        self,
        task: Task,
        delivery: Delivery,
        *,
        deadline: Deadline,
        keeper: LeaseKeeper,
    ) -> Running:
        """Spawn the command with its output connected; raises StartFailed."""
        if task.kwargs is not None and task.call is None:
            raise OtherKind("this task is meant for a library callback; `jobq worker` runs commands")
        held = ExitStack()  # until all of it has ended
        try:
            arguments = None
            try:
                checkpoints = AttemptCheckpoints(delivery, keeper, self._archives, self._folder.new_folder)
                held.callback(checkpoints.close)
                await checkpoints.restore()
                socket = await self._line.admit(checkpoints)
                held.callback(self._line.dismiss, socket)
                if task.kwargs:
                    arguments = self._folder.written(strict_json.dumps(task.kwargs))
                    held.callback(_remove, arguments)  # its process has, unless it did not get so far
            except OSError as error:
                raise StartFailed(f"no room for its socket and its files: {error.strerror}", transient=True) from error
            variables = {SOCKET_VARIABLE: socket}
            if checkpoints.folder is not None:
                variables["JOBQ_CHECKPOINT_DIR"] = str(checkpoints.folder)
            running = await self.launch(
                task,
                delivery,
                deadline=deadline,
                argv=argv_of(task, arguments),
                folder=self._folder,
                variables=variables,
                checkpoints=checkpoints,
                on_close=held.close,
            )
        except BaseException:
            held.close()
            raise
        self._line.listen_to(socket, running.pid)
        return running

    async def launch(
        self,
        task: Task,
        delivery: Delivery,
        *,
        deadline: Deadline,
        argv: tuple[str, ...],
        folder: TaskFolder | None = None,
        variables: Mapping[str, str] | None = None,
        checkpoints: AttemptCheckpoints | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> CommandRunning:
        """Spawn any program as an attempt of a task; raises StartFailed.

        Args:
            task: whose environment, directory and identity it gets.
            delivery: how it came.
            deadline: by when nothing of it may live; it moves meanwhile.
            argv: what to execute.
            folder: where it may write a result; None = it has none.
            variables: more for its environment.
            checkpoints: what it saves; None = it saves by other ways.
            on_close: called when all of it has ended.
        """
        environment = task_environment(
            task,
            queue_name=self._queue_name,
            fencing=delivery.fencing,
            attempt=delivery.deliveries,
            checkpoint=StoredCheckpoint.decode(delivery.checkpoint_value).value,
            inherited=self._inherited,
        )
        environment.update(variables or {})
        grant = None if self._grants is None else self._grants.of(delivery)
        if grant is not None and self._grants is not None:
            environment.update(self._grants.variables(grant))
        result = None if folder is None else _result_file(folder)
        if result is not None:
            environment["JOBQ_RESULT_FILE"] = str(result)
        sink = self._sinks(task.id, delivery.deliveries)
        try:
            output = self._output_reader(
                lambda stream, line: self._on_line(task.id, stream, line),
                on_bytes={stream: partial(take, task.id) for stream, take in self._on_bytes.items()},
                sink=sink.write,
            )
        except OSError as error:
            sink.close()
            raise StartFailed(
                f"no pipes for its output: {error.strerror}; raise `ulimit -n`", transient=True
            ) from error
        oom = self._oom.begin()
        try:
            launch = Launch(
                argv=argv,
                env=environment,
                cwd=task.cwd,
                stdout=output.stdout,
                stderr=output.stderr,
                deadline=deadline,
                on_gone=nothing if grant is None else grant.launching(),
            )
            process = await self._spawner.spawn(launch)
        except BaseException:
            oom.end()
            output.close()
            sink.close()
            raise

        def end() -> None:
            try:
                on_close()
            finally:
                sink.close()

        output.child_started()
        limit = None if task.resources is None else task.resources.mem
        return CommandRunning(process, output, self._sampler.watch(process, task, limit), oom, result, end, checkpoints)


def _result_file(folder: TaskFolder) -> Path:
    try:
        return folder.new_file()
    except OSError as error:
        raise StartFailed(f"no folder for its result: {error.strerror}", transient=True) from error


def _remove(arguments: Path) -> None:
    with suppress(OSError):
        arguments.unlink()
