"""What Azurite granted and accepted, by its own answers: a recorder stands right before it, behind all faults.

An expiry is at least the moment when the recorder read the request plus the time that it asked for, so a lease is never
taken for longer than it was.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree as ET

from jobq_azure.storage.message_format import body_of
from tests.chaos.store_truth import Attempt, Lease
from tests.support.http_proxy import ProxiedRequest

DEAD_QUEUE_SUFFIX: Final = "-failed"


class AzuriteRecord:
    """The leases and ends of one queue.

    Args:
        queue: its name.
    """

    def __init__(self, queue: str) -> None:
        self.leases: dict[Attempt, Lease] = defaultdict(Lease)
        self.ends: dict[str, list[str]] = defaultdict(list)
        self._queue = queue
        self._held: dict[str, Attempt] = {}  # by the message's id: its latest delivery
        self._buried: list[str] = []  # what was accepted as a dead letter, in the message's own text

    def read(self, requests: list[ProxiedRequest]) -> None:
        """Take in what was answered, and take it out of the list."""
        answered = sorted((each for each in requests if each.ended is not None), key=lambda each: each.ended or 0.0)
        requests[:] = [each for each in requests if each.ended is None]
        for each in answered:
            if each.status is not None and each.status < 300 and "/messages" in each.path:
                self._take(each)

    def _take(self, request: ProxiedRequest) -> None:
        queue, _, message = request.path.split("/", 2)[2].partition("/messages")
        seconds = float(request.query.get("visibilitytimeout", "0"))
        if request.method == "POST" and queue == f"{self._queue}{DEAD_QUEUE_SUFFIX}":
            self._buried.append(request.body.decode())
        if queue != self._queue or "peekonly" in request.query:
            return
        if request.method == "GET":
            for id_, attempt in _granted(request.answer):
                self._held[id_] = attempt
                self.leases[attempt].expiries.append(request.began + seconds)
        if held := self._held.get(message.strip("/")):
            lease = self.leases[held]
            if request.method == "PUT" and not request.body:
                lease.expiries.append(request.began + seconds)
            elif request.method in ("PUT", "DELETE"):
                state = "ready" if request.method == "PUT" else self._end_of(held.task)
                lease.settlements.append(state)
                lease.ended = request.began
                if request.method == "DELETE":
                    self.ends[held.task].append(state)

    def _end_of(self, task: str) -> str:
        return "dead" if any(task in text for text in self._buried) else "done"


def _granted(answer: bytes) -> Iterator[tuple[str, Attempt]]:
    """Return the message's id and the delivery of each task in an answer to a receive."""
    if not answer.strip():
        return
    for message in ET.fromstring(answer.decode("utf-8-sig")).iter("QueueMessage"):
        task = json.loads(body_of(message.findtext("MessageText", "")))["id"]
        yield message.findtext("MessageId", ""), Attempt(task, int(message.findtext("DequeueCount", "0")))
