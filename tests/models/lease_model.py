"""The lease protocol in a small scope: workers, one task, one broker that keeps time, a network that keeps nothing.

Time is in ticks. Requests come late, twice or never, answers late or never; workers crash; a worker's clock loses up to
`drift` ticks within a lease. (One that gains kills too early, which is safe.) What must hold in every state:

    P1      a tree runs only while the lease of its delivery stands by the broker's clock; so never two trees (S3)
    S4, S5  a settle takes effect once, and only while the lease of its delivery stands

Each rule can be left out, and must then be missed: see `RULES`. Workers are alike, so their order makes no difference;
what a dead worker sent, and what a living one waits for no longer, belongs to nobody ("astray").
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import cache
from itertools import product
from typing import Final, NamedTuple

from tests.models.search import Table

RULES: Final = {
    "1": "a deadline counts from before the renewal, not from its answer (rules.md 1.3 rule 1)",
    "2": "the deadline lies before the lease's end by what a clock may lose (rule 2)",
    "3": "no answer is no extension (rule 3)",
    "5": "a receive counts from before its request (rule 5)",
    "5, stale": "a receive whose answer came late is renewed before anything starts (rule 5)",
    "7": "no stopped or blocked worker delays the kill: the guardian holds the deadline (rule 7)",
    "S4, settle": "a settle compares the fencing number",
    "S4, renew": "a renewal compares the fencing number",
}


class Mode(IntEnum):
    """What a worker does."""

    IDLE = 0
    ASKED = 1
    CONFIRMING = 2
    RUNNING = 3


class Mail(IntEnum):
    """What is on its way between a worker and the broker, of the one request that the worker waits for."""

    NONE = 0  # lost, or nothing was asked
    REQUEST = 1
    GRANTED = 2
    KEPT = 3
    REFUSED = 4


class Worker(NamedTuple):
    """One worker.

    Attributes:
        mode: what it does.
        number: of the delivery; 0 = none.
        held: ticks of its own clock since the request that its deadline counts from.
        lag: ticks that this clock lost meanwhile.
        age, age_lag: likewise since the request that it waits for; age -1 = for none.
        mail: of that request.
    """

    mode: Mode = Mode.IDLE
    number: int = 0
    held: int = 0
    lag: int = 0
    age: int = -1
    age_lag: int = 0
    mail: Mail = Mail.NONE


class Request(NamedTuple):
    """A request that nobody waits for, or that came before and comes again."""

    verb: str  # receive, renew, complete or requeue
    number: int


class Broker(NamedTuple):
    """The broker's record of the task.

    Attributes:
        number: of the latest delivery.
        left: ticks that its lease has; 0 = nothing is leased.
        done: number of the delivery that completed it; 0 = none has.
    """

    number: int = 0
    left: int = 0
    done: int = 0


# Places in the model's tables: of the broker, of what is astray, and of the workers, in order.
State = tuple[int, ...]
_IDLE: Final = Worker()
_STALE_SETTLE: Final = -1  # for `done`


class LeaseModel:
    """The protocol without some of its rules.

    Args:
        lease: ticks.
        drift: ticks that a clock may lose within a lease.
        numbers: deliveries, at most.
        astray: requests that nobody waits for, at most; more are lost.
        workers: how many.
        without: the rules that are left out.
    """

    def __init__(
        self,
        *,
        lease: int = 6,
        drift: int = 1,
        numbers: int = 3,
        astray: int = 1,
        workers: int = 2,
        without: frozenset[str] = frozenset(),
    ) -> None:
        assert without <= RULES.keys()
        self._lease, self._drift, self._numbers, self._astray, self._count = lease, drift, numbers, astray, workers
        self._rules = RULES.keys() - without
        self._hold = lease - 1 - (drift if "2" in self._rules else 0)  # one tick to kill
        self._patience, self._stale = 2, 1
        self._workers, self._brokers, self._strays = Table[Worker](), Table[Broker](), Table[tuple[Request, ...]]()
        self._ticked = cache(self._after_tick)
        self._acts = cache(self._done_by)
        self._answers = cache(self._answered)
        self._late = cache(self._lost_or_late)
        self._passed = cache(self._after_time)
        self._runs = cache(self._running)

    def first(self) -> State:
        """Nothing was delivered yet."""
        return (
            self._brokers.place(Broker()), self._strays.place(()), *(self._workers.place(_IDLE),) * self._count
        )  # fmt: skip

    def following(self, state: State) -> Iterable[tuple[str, State]]:
        """Return what workers, network and time may do."""
        broker, astray, *workers = state
        passed = self._passed(broker)
        found = [("a tick", (passed, astray, *sorted(after))) for after in product(*map(self._ticked, workers))]
        previous = -1
        for at, place in enumerate(workers):
            if place == previous:
                continue  # its twin has done all that
            previous = place
            others = workers[:at] + workers[at + 1 :]
            for label, became, left in self._acts(place, broker, astray):
                found.append((label, (broker, left, *sorted((*others, became)))))
            for label, served, became, left in self._answers(place, broker, astray):
                found.append((label, (served, left, *sorted((*others, became)))))
        for label, served, left in self._late(broker, astray):
            found.append((label, (served, left, *workers)))
        return found

    def broken(self, state: State) -> str:
        """P1, S4 and S5."""
        number, left, done = self._brokers.all[state[0]]
        if done == _STALE_SETTLE:
            return "S4: a stale settle took effect"
        for place in state[2:]:
            running = self._runs(place)
            if running and (running != number or not left):
                return f"P1: the tree of delivery {running} runs, and its lease is over"
        return ""

    def told(self, state: State) -> str:
        """Return it in words."""
        number, left, done = self._brokers.all[state[0]]
        lease = f"delivery {number} is leased for {left}" if left else "nothing is leased"
        parts = [f"done by {done}" if done > 0 else lease]
        for worker in (self._workers.all[place] for place in state[2:]):
            if worker.mode == Mode.RUNNING:
                lost = f", {worker.lag} lost" if worker.lag else ""
                parts.append(f"{worker.number} runs, {worker.held} of {self._hold}{lost}")
            elif worker.mode:
                parts.append(f"one {worker.mode.name.lower()} since {worker.age}")
        parts += [f"astray: {each.verb} {each.number or ''}".rstrip() for each in self._strays.all[state[1]]]
        return "; ".join(parts)

    def _running(self, place: int) -> int:
        worker = self._workers.all[place]
        return worker.number if worker.mode == Mode.RUNNING else 0

    def _after_time(self, place: int) -> int:
        broker = self._brokers.all[place]
        return self._brokers.place(broker._replace(left=max(0, broker.left - 1)))

    def _served(self, broker: Broker, request: Request) -> tuple[str, Broker, Mail] | None:  # noqa: PLR0911 - a table
        """Return what the broker makes of a request; a receive that finds nothing waits, as a long poll."""
        number, left, done = broker
        is_ours = bool(left) and request.number == number
        match request.verb:
            case "receive":
                if left or done or number >= self._numbers:
                    return None
                return f"delivery {number + 1} is granted", Broker(number + 1, self._lease), Mail.GRANTED
            case "renew":
                if is_ours or ("S4, renew" not in self._rules and not done):
                    return f"{request.number} is renewed", broker._replace(left=self._lease), Mail.KEPT
                return f"the renewal of {request.number} is refused", broker, Mail.REFUSED
            case verb:
                settled = f"the {verb} of {request.number}"
                if is_ours:
                    ended = number if verb == "complete" else 0
                    return f"{settled} takes effect", Broker(number, 0, ended), Mail.NONE
                if "S4, settle" in self._rules:
                    return f"{settled} is refused", broker, Mail.NONE
                return f"{settled} takes effect", Broker(number, 0, _STALE_SETTLE), Mail.NONE

    def _answered(self, place: int, broker: int, astray: int) -> list[tuple[str, int, int, int]]:
        """Return what comes of the request that a worker waits for, when it arrives."""
        worker, strays = self._workers.all[place], self._strays.all[astray]
        if worker.mail != Mail.REQUEST:
            return []
        request = _request_of(worker)
        if (served := self._served(self._brokers.all[broker], request)) is None:
            return []
        label, after, mail = served
        number = after.number if mail == Mail.GRANTED else worker.number
        became, served_at = self._workers.place(worker._replace(mail=mail, number=number)), self._brokers.place(after)
        found = [(label, served_at, became, astray)]
        if len(strays) < self._astray:
            twice = self._strays.place(tuple(sorted((*strays, request))))
            found.append((f"{label}, and the request comes again later", served_at, became, twice))
        return found

    def _lost_or_late(self, broker: int, astray: int) -> list[tuple[str, int, int]]:
        """Return what becomes of requests that nobody waits for."""
        found = []
        strays = self._strays.all[astray]
        for request in dict.fromkeys(strays):
            rest = list(strays)
            rest.remove(request)
            without = self._strays.place(tuple(rest))
            found.append((f"a {request.verb} of {request.number or 'somebody'} is lost", broker, without))
            if (served := self._served(self._brokers.all[broker], request)) is not None:
                label, after, _ = served
                found.append((f"late: {label}", self._brokers.place(after), without))
                found.append((f"late: {label}, and it comes again", self._brokers.place(after), astray))
        return found

    def _after_tick(self, place: int) -> tuple[int, ...]:
        """Return what a worker may be after a tick, whether its clock saw it or not; nothing while a kill is due."""
        worker = self._workers.all[place]
        if worker.mode == Mode.IDLE:
            return (place,)
        if self._must_die(worker):
            return ()
        runs, asks = worker.mode == Mode.RUNNING, worker.age >= 0
        held = min(worker.held + 1, self._hold) if runs else 0
        after = [worker._replace(held=held, age=min(worker.age + 1, self._hold) if asks else -1)]
        if max(worker.lag, worker.age_lag) < self._drift:
            after.append(worker._replace(lag=worker.lag + runs, age_lag=worker.age_lag + asks))
        return tuple(map(self._workers.place, after))

    def _must_die(self, worker: Worker) -> bool:
        return worker.mode == Mode.RUNNING and worker.held >= self._hold and "7" in self._rules

    def _done_by(self, place: int, broker: int, astray: int) -> list[tuple[str, int, int]]:
        """Return what a worker may do by itself: in words, what it is then, and what is astray then."""
        worker, strays = self._workers.all[place], self._strays.all[astray]
        number, _, done = self._brokers.all[broker]
        if worker.mode == Mode.IDLE and (number == self._numbers or done):
            return []  # there is nothing to ask for
        found = []
        for label, became, sent in self._acts_of(worker):
            left = astray
            if sent is not None and len(strays) < self._astray:
                left = self._strays.place(tuple(sorted((*strays, sent))))
            found.append((label, self._workers.place(became), left))
        return found

    def _acts_of(self, worker: Worker) -> Iterator[tuple[str, Worker, Request | None]]:
        """Yield in words, what the worker is then, and what it leaves behind; that is lost where there is no room."""
        number = worker.number
        left_behind = _request_of(worker) if worker.mail == Mail.REQUEST else None
        match worker.mode:
            case Mode.IDLE:
                yield "a worker asks", Worker(Mode.ASKED, age=0, mail=Mail.REQUEST), None
            case Mode.ASKED:
                yield "who asked crashes, or asks no more", _IDLE, left_behind
                if worker.mail == Mail.GRANTED:
                    yield self._begun(worker)
            case Mode.CONFIRMING:
                yield f"{number} crashes, or waits no more", _IDLE, left_behind
                if worker.mail == Mail.REFUSED or (worker.mail == Mail.KEPT and worker.age > self._stale):
                    yield f"{number} is let go", _IDLE, None
                elif worker.mail == Mail.KEPT:
                    yield f"{number} starts, confirmed", self._extended(worker, "1"), None
            case _ if self._must_die(worker):
                yield f"{number} is killed at its deadline", _IDLE, left_behind
            case _ if worker.age < 0:
                yield f"{number} crashes", _IDLE, None
                yield f"{number} renews", worker._replace(age=0, age_lag=0, mail=Mail.REQUEST), None
                yield f"{number} succeeds", _IDLE, Request("complete", number)
                yield f"{number} fails", _IDLE, Request("requeue", number)
            case _:
                yield f"{number} crashes", _IDLE, left_behind
                yield from self._waits(worker, left_behind)

    def _waits(self, worker: Worker, left_behind: Request | None) -> Iterator[tuple[str, Worker, Request | None]]:
        number = worker.number
        if worker.mail == Mail.KEPT:
            yield f"{number} hears that it was renewed", self._extended(worker, "1"), None
        elif worker.mail == Mail.REFUSED:
            yield f"{number} hears that its lease is gone", _IDLE, None
        if worker.age >= self._patience:
            no_more = worker._replace(age=-1, age_lag=0, mail=Mail.NONE)
            yield f"{number} has no answer", no_more if "3" in self._rules else self._extended(worker, "3"), left_behind

    def _begun(self, worker: Worker) -> tuple[str, Worker, Request | None]:
        if {"5", "5, stale"} <= self._rules and worker.age > self._stale:
            confirming = Worker(Mode.CONFIRMING, worker.number, age=0, mail=Mail.REQUEST)
            return f"{worker.number} came late, and is renewed first", confirming, None
        return f"{worker.number} starts", self._extended(worker, "5"), None

    def _extended(self, worker: Worker, rule: str) -> Worker:
        """Return a worker whose deadline counts from its request, or without a rule from the answer to it."""
        held, lag = (0, 0) if rule in {"1", "5"} and rule not in self._rules else (worker.age, worker.age_lag)
        return Worker(Mode.RUNNING, worker.number, held, lag)


def _request_of(worker: Worker) -> Request:
    return Request("receive", 0) if worker.mode == Mode.ASKED else Request("renew", worker.number)
