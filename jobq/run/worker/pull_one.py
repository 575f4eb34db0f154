"""One task for a program: `Queue.pull_and_execute`, with a guardian of its own where processes are started."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from jobq.backend import Backend
from jobq.clock import Moment, clock_of
from jobq.errors import BackendUnavailable, ConfigurationError
from jobq.events import Events
from jobq.racing import racing
from jobq.resources.offer import Offer
from jobq.run.attempt.checkpoints import archives_of
from jobq.run.attempt.neighbours import Placement
from jobq.run.attempt.runner import CommandRunner, OnLine, Runner
from jobq.run.attempt.supervisor import DeliveryReport, Supervisor
from jobq.run.attempt.task_grants import TaskGrants
from jobq.run.attempt.task_socket import TaskSocket
from jobq.run.callbacks.callback import Callback, CallbackSignature
from jobq.run.callbacks.inline_runner import CallbackRunner, ThreadRunner
from jobq.run.callbacks.process_runner import ProcessRunner, portable
from jobq.run.circuit_breaker import Breaker
from jobq.run.process.environment import own_environment
from jobq.run.process.log_upload import LOG_SECONDS, sinks_of
from jobq.run.process.oom import oom_counter
from jobq.run.process.task_folder import TaskFolder
from jobq.run.process.usage import UsageSampler
from jobq.run.spawn.choose_spawner import keep_clock, spawner_for
from jobq.run.stopping import Stopping
from jobq.run.worker.receive import GIVE_BACK_SECONDS, RECEIVE_SECONDS
from jobq.selecting import selecting
from jobq.settings import Settings


def _commands(commands: CommandRunner) -> Runner:
    return commands


@dataclass(frozen=True, kw_only=True)
class PullWay:
    """How tasks are run.

    Attributes:
        inside: runs them in this process; None = as processes.
        adapt: makes what runs them as processes from the runner of commands.
    """

    inside: Runner | None = None
    adapt: Callable[[CommandRunner], Runner] = _commands


def way_of(callback: Callback | None, *, thread: bool) -> PullWay:
    """Return how a callback is run.

    Args:
        callback: None = the tasks' own commands.
        thread: run a plain callback in a thread of this process.

    Raises:
        ConfigurationError: the callback can never work.
    """
    if callback is None:
        if thread:
            raise ConfigurationError("thread=True is for a callback; commands are processes")
        return PullWay()
    convention = CallbackSignature(callback)
    if convention.is_asynchronous:
        if thread:
            raise ConfigurationError(f"callback {convention.name} is asynchronous; thread=True is for plain functions")
        return PullWay(inside=CallbackRunner(convention))
    if thread:
        return PullWay(inside=ThreadRunner(convention))
    function = portable(callback, convention.name)
    return PullWay(adapt=lambda commands: ProcessRunner(convention, function, commands))


async def pull_and_execute(
    backend: Backend,
    settings: Settings,
    way: PullWay,
    *,
    wait: timedelta,
    stopping: Stopping | None,
    on_line: OnLine,
) -> DeliveryReport | None:
    """Receive one task and carry it through; see `Queue.pull_and_execute`."""
    async with _runner(backend, settings, way, on_line) as runner:
        supervisor = Supervisor(
            backend=backend,
            runner=runner,
            settings=settings,
            clock=(clock := clock_of(shares_machine=backend.capabilities.shares_machine)),
            breaker=Breaker(0, clock),
            events=Events(),
            stopping=stopping or Stopping(),
        )
        supervisor.check()
        pulling = asyncio.create_task(_pull(supervisor, wait), name="pull and execute")
        pulling.add_done_callback(lambda _: supervisor.close())
        try:
            return await asyncio.shield(pulling)
        except asyncio.CancelledError:
            # What runs is given back before the caller hears of it.
            supervisor.stopping.now("the caller was cancelled")
            with racing(pulling):  # cancelled once more, it is not waited for any longer
                await asyncio.wait([pulling])
            if not pulling.cancelled():
                pulling.exception()  # counts as seen: the cancellation is what the caller hears
            raise


async def _pull(supervisor: Supervisor, wait: timedelta) -> DeliveryReport | None:
    since = Moment.of(supervisor.clock)  # rule 1: before the request that grants the lease
    offers_nothing = TaskGrants(Offer(), supervisor.clock, chance=supervisor.chance)
    if (selects := selecting(supervisor.backend)) is not None:
        receive = selects.receive_fitting(offers_nothing.room(may_reserve=False), 1, supervisor.lease, wait)
    else:
        receive = supervisor.backend.receive(1, supervisor.lease, wait)
    limit = wait.total_seconds() + RECEIVE_SECONDS
    with racing(receive, supervisor.stopping.receiving.wait()) as (receiving, stopped):
        await asyncio.wait([receiving, stopped], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not receiving.done():
            receiving.cancel()
            await asyncio.wait([receiving], timeout=GIVE_BACK_SECONDS)
            if not stopped.done():
                raise BackendUnavailable(f"no answer to a receive within {limit:.3g} s")
    if not receiving.done() or receiving.cancelled():
        return None
    deliveries = receiving.result()
    if not deliveries:
        return None
    place = offers_nothing.place(deliveries[0], Placement())
    return await supervisor.execute(deliveries[0], since, place)


@asynccontextmanager
async def _runner(backend: Backend, settings: Settings, way: PullWay, on_line: OnLine) -> AsyncIterator[Runner]:
    if way.inside is not None:
        yield way.inside
        return
    sampler = UsageSampler(settings.memory_limit)
    folder = TaskFolder()
    line = TaskSocket(folder)
    async with (
        archives_of(backend, settings) as archives,
        sinks_of(backend.name, settings, lambda: LOG_SECONDS) as sinks,
        spawner_for(settings) as spawner,
    ):
        keep_clock(spawner, clock_of(shares_machine=backend.capabilities.shares_machine))
        sampling = asyncio.create_task(sampler.run(), name="usage")
        try:
            commands = CommandRunner(
                spawner,
                queue_name=backend.name,
                settings=settings,
                environment=own_environment(),
                on_line=on_line,
                sampler=sampler,
                folder=folder,
                line=line,
                archives=archives,
                sinks=sinks,
                oom=oom_counter(),
            )
            yield way.adapt(commands)
        finally:
            line.close()
            folder.close()
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
