"""Runs the tasks that tell of the end of a batch: what they send is composed here, from the batch itself."""

import json
import time
from typing import Final
from urllib.parse import urlsplit

from jobq import notify
from jobq.backend import Backend, Delivery
from jobq.batches import KeepsBatches, RoundNotice
from jobq.errors import BatchNotFound, JobqError
from jobq.formats.task_ids import digest
from jobq.lease.keeper import LeaseKeeper
from jobq.run.attempt.runner import Runner, Running
from jobq.run.process.spawner import Awaited, Deadline, OtherKind, StartFailed
from jobq.settings import Settings
from jobq.task import Task


class NoticeRunner:
    """Starts all attempts by other runners; of one that sends a notice it says what, where the task alone could lie.

    Args:
        inner: starts all others.
        commands: runs functions as processes.
        backend: of the queue.
        settings: have the secrets, and the hosts to which notices may go.

    Raises:
        ConfigurationError: a secret is none.
    """

    def __init__(self, inner: Runner, commands: Runner, backend: Backend, settings: Settings) -> None:
        self._inner: Final = inner
        self._commands: Final = commands
        self._backend: Final = backend
        self._settings: Final = settings
        self._keys: Final = notify.keys_of(settings.webhook_secret)

    async def start(self, task: Task, delivery: Delivery, *, deadline: Deadline, keeper: LeaseKeeper) -> Running:
        """Start an attempt; raises StartFailed."""
        if task.call != notify.CALL:
            return await self._inner.start(task, delivery, deadline=deadline, keeper=keeper)
        return await self._commands.start(await self._notice(task), delivery, deadline=deadline, keeper=keeper)

    async def _notice(self, task: Task) -> Task:
        asked = task.kwargs or {}
        name, number, place = asked.get("batch"), asked.get("round"), asked.get("place")
        if not (isinstance(name, str) and type(number) is int and type(place) is int):
            raise StartFailed("it names no batch, round and place, so there is nothing to send")
        if not (isinstance(self._backend, KeepsBatches) and self._backend.capabilities.batches):
            raise StartFailed("this queue keeps no batches, so there is nothing to tell")
        try:
            found = await self._backend.batches.notice(name, number)
        except BatchNotFound as error:
            raise StartFailed(str(error)) from None
        except JobqError as error:
            raise Awaited(f"nothing is known of batch {name} just now: {error}") from error
        return self._with_request(task, name, found, place)

    def _with_request(self, task: Task, name: str, found: RoundNotice, place: int) -> Task:
        if not 0 <= place < len(found.addresses):
            raise StartFailed(f"batch {name} has no address number {place}")
        url = found.addresses[place]
        settings, host = self._settings, urlsplit(url).hostname or ""
        is_limited = settings.allow_commands or settings.allow_calls or settings.require_signed == "on"
        if (is_limited or settings.notify_hosts) and host not in map(str.lower, settings.notify_hosts):
            raise OtherKind(f"{host} is not among the hosts of JOBQ_NOTIFY_HOSTS, to which this worker sends notices")
        ended = found.round
        data = {"queue": self._backend.name, "batch": name, "round": ended.number, "counts": dict(ended.counts)}
        # Not the task's: who pushed that has chosen it, and each queue may have a batch of this name.
        id_ = "msg_" + digest(json.dumps([*data.values(), ended.finished, place]), 16)
        headers, body = notify.request(id_, data, ended.finished, self._keys, time.time())
        # Nothing of what the task brings but its id and budgets: no folder, no variable that changes what Python does.
        arguments = {"url": url, "headers": headers, "body": body}
        return task.copied({"kwargs": arguments, "env": {}, "cwd": None, "timeout": 2 * notify.SECONDS})
