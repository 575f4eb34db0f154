"""Those who push, cancel and redrive in a run."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from jobq.errors import BackendUnavailable, JobqError, PushUnknown
from tests.simulation.network import NetworkLink
from tests.simulation.rules.monitor import Monitor
from tests.simulation.scenario import Scenario


async def produce(client: Any, chance: Random, scenario: Scenario, monitor: Monitor) -> None:
    """Push all tasks, some at a time, and repeat what is unknown where that is safe."""
    waiting = list(scenario.tasks)
    while waiting:
        count = chance.randint(1, 3) if "push in pieces" in scenario.kinds else len(waiting)
        some, waiting = waiting[:count], waiting[count:]
        for task in some:
            monitor.pushing(task)
        is_known = False
        while not is_known:
            try:
                async with asyncio.timeout(10):
                    await client.push(some)
                is_known = True
            except (PushUnknown, BackendUnavailable, TimeoutError) as error:
                if not isinstance(error, BackendUnavailable) and not client.capabilities.idempotent_push:
                    break
                await asyncio.sleep(chance.uniform(0.1, 2.0))
        for task in some if is_known else ():
            monitor.acknowledged(task.id)
        if waiting:
            await asyncio.sleep(chance.uniform(0, scenario.lease))


async def meddle(
    client: Any, link: NetworkLink, scenario: Scenario, monitor: Monitor, goes_on: Callable[[], bool]
) -> None:
    """Cancel and redrive now and then, as long as faults strike."""
    chance = link.chance
    while goes_on():
        await asyncio.sleep(chance.uniform(0.2, 2.0) * scenario.lease)
        with suppress(JobqError, TimeoutError):
            async with asyncio.timeout(5):
                if "cancel" in scenario.kinds and monitor.tasks and chance.random() < 0.5:
                    link.broker.fired("cancel")
                    await client.cancel(chance.choice(sorted(monitor.tasks)))
                dead = sorted(known.id for known in monitor.tasks.values() if known.state == "dead")
                if "redrive" in scenario.kinds and dead:
                    link.broker.fired("redrive")
                    await client.redrive(dead[:2])
