"""One run: workers, producers, faults, and the drain; all that the seed decides is decided here."""

import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from random import Random
from typing import Any, Final

from jobq.errors import BackendUnavailable, JobqError
from jobq.events import Event, Events
from jobq.journal.store import KeepsJournal
from jobq.lease.store import KeepsLeases
from jobq.run.stopping import Stopping
from tests.simulation.attempts import Attempts, chance_of
from tests.simulation.broker import MakeBackend, SimulatedBroker
from tests.simulation.crew import MOST_DRIFT, Crew
from tests.simulation.logs import ErrorsTo
from tests.simulation.loop import Loop, Machine, Node, StoreMachine
from tests.simulation.machine.guardian import GuardianProcess
from tests.simulation.machine.host import SimulatedHost, worker_on
from tests.simulation.machine.trees import TaskTree
from tests.simulation.network import NetworkLink
from tests.simulation.people import meddle, produce
from tests.simulation.rules.named import NamedRules, contend
from tests.simulation.scenario import Scenario
from tests.simulation.store import SimulatedStore, store_of

MOST_STEPS: Final = 400_000  # while faults strike, and as many for the drain
_BLOWS_A_LEASE: Final = 2.5
# Strikes for so many seconds; returns whether it struck anything.
Blow = Callable[["World", Crew, float, Random], bool]


class World:
    """A run of one seed.

    Args:
        seed: decides everything.
        made: what is simulated: a store, or what lends a backend on the server's clock.
        blows: that may fall, by kind.
        keeps_trace: whether lines are kept.
        skip: numbers of blows that are left out, for shrinking; the others stay as they are.
    """

    def __init__(
        self,
        seed: int,
        made: SimulatedStore | MakeBackend,
        blows: Mapping[str, Blow],
        *,
        keeps_trace: bool = False,
        skip: frozenset[int] = frozenset(),
    ) -> None:
        self.seed = seed
        self.loop = Loop()
        self.loop.on_error = self._fault_of_the_loop
        self.blows = 0
        self._skip, self._blows = skip, blows
        self._chance = chance = chance_of(seed)
        self._store = store = store_of(made)
        self.scenario = scenario = Scenario.draw(chance, store.without)
        self.kinds, self.lease, self.slots = scenario.kinds, scenario.lease, scenario.slots
        # rules.md 1.3 rule 2, reckoned here, not as the product does.
        granted = self.lease - store.grain
        self.hold = min(0.85 * granted, 0.99 * granted - 1.5)
        server = (StoreMachine if store.is_on_machine else Machine)(self.loop, "server")
        self._server = server
        self.monitor = store.monitor(self.loop, server, self, keeps_lines=keeps_trace)
        self._open = ExitStack()
        self.broker = SimulatedBroker(self.loop, self.monitor, server, self._open.enter_context(store.make(server)))
        store.finish(self.broker.backend, self.monitor, self.lease, chance_of(f"{seed} store"))
        self.broker.rotates = "rotating receipts" in self.kinds
        self.loop.before_time_moves = self._instant
        self.named = self._named_rules(server)
        self._is_faulty = True
        self._is_idle = False
        self._attempts = Attempts(seed, scenario, self.loop)
        self._blaming: set[Node] = set()
        self.crews = [self._crew(number) for number in range(scenario.machines)]

    def _named_rules(self, server: Machine) -> NamedRules | None:
        backend = self.broker.backend
        if "named leases" not in self.kinds or not isinstance(backend, KeepsLeases):
            return None
        return NamedRules(self.loop, self.monitor, server, backend.leases, self._is_excused)

    def _instant(self) -> None:
        self.monitor.instant()
        if self.named is not None:
            self.named.instant()

    def _crew(self, number: int) -> Crew:
        chance = self._chance
        rate = 1.0 + chance.uniform(-MOST_DRIFT, MOST_DRIFT)
        machine = Machine(self.loop, f"m{number}", rate, chance.uniform(10, 100_000))
        if self._store.is_on_machine:
            machine = self._server
        link = NetworkLink(self.broker, chance_of(chance.getrandbits(64)))
        self.scenario.set_up(link, chance)
        return Crew(number, machine, link, chance_of(chance.getrandbits(64)))

    def run(self) -> "World":
        """Let faults strike, heal, and wait for every task's end; look at `monitor` then."""
        with self._open, ErrorsTo(self._fault_of_a_log):
            self._do(self.broker.backend.__aenter__())
            self._do(self.broker.backend.create())
            self._begin()
            self.loop.run_while(self._goes_on(self.scenario.fault_seconds, lambda: self._is_idle), MOST_STEPS)
            self._look()
            self._heal()
            until = self.loop.now + self.scenario.drain_seconds()
            self.loop.run_while(self._goes_on(until, self._is_drained), MOST_STEPS + self.loop.steps)
            is_drained = self._is_drained()  # somebody's redrive may still arrive
            self._look()
            if not self.monitor.violations and not is_drained:
                left = {known.id: known.state for known in self.monitor.tasks.values() if not known.has_ended}
                self.monitor.broken("L1", f"not ended though everything healed: {left}")
            while self.broker.node.pauses:  # a rule was broken just then
                self.broker.node.resume()
            self._do(self.broker.backend.__aexit__(None, None, None))
            self.loop.finish()
        return self

    @property
    def is_cut_short(self) -> bool:
        """Whether it ended at the limit of steps."""
        return self.loop.steps >= MOST_STEPS

    def later(self, seconds: float, function: Callable[..., object], *args: object) -> None:
        """Call it after so many true seconds."""
        self.loop.true_later(seconds, self.broker.node, function, *args)

    def _goes_on(self, until: float, is_over: Callable[[], bool] = lambda: False) -> Callable[[], bool]:
        return lambda: self.loop.now < until and not self.monitor.violations and not is_over()

    def _has_nothing_to_do(self) -> bool:
        """Return whether a blow would strike nothing: all tasks have ended, and nobody puts one back."""
        may_come_back = "redrive" in self.kinds and any(each.state == "dead" for each in self.monitor.tasks.values())
        return self._is_drained() and not may_come_back

    def _is_drained(self) -> bool:
        return len(self.monitor.tasks) == len(self.scenario.tasks) and self.monitor.all_ended()

    def _begin(self) -> None:
        for number, crew in enumerate(self.crews):
            self.later(0.1 * number, self._start, crew)
            self.later(0.1 * number, self.contend, crew)
        people = Node(Machine(self.loop, "people"), "people")
        links = [NetworkLink(self.broker, chance_of(self._chance.getrandbits(64))) for _ in range(2)]
        links[0].lose_answer, links[0].double = self.crews[0].link.lose_answer, self.crews[0].link.double
        people.run(self.loop.create_task, self._produce(links[0], people.machine))
        people.run(self.loop.create_task, self._meddle(links[1], people.machine))
        self.later(self.lease * 0.5, self._strike)

    async def _produce(self, link: NetworkLink, machine: Machine) -> None:
        async with self._store.connect(link, machine) as client:
            await produce(client, link.chance, self.scenario, self.monitor)

    async def _meddle(self, link: NetworkLink, machine: Machine) -> None:
        async with self._store.connect(link, machine) as client:
            await meddle(client, link, self.scenario, self.monitor, lambda: self._is_faulty)

    def _look(self) -> None:
        """Compare the store with the model, where the backend can be asked about each task."""
        if self.broker.node.pauses:
            return  # its machine stands still, and all that could change something with it
        if not isinstance(self.broker.backend, KeepsJournal) or (journal := self.broker.backend.journal) is None:
            return

        async def look() -> None:
            self.monitor.check_store(await journal.find(list(self.monitor.tasks)))

        self._do(look())

    def _do(self, work: Coroutine[Any, Any, object]) -> None:
        """Run it on the broker, to its end."""
        working = self.broker.node.run(self.loop.create_task, work)
        self.loop.run_while(lambda: not working.done(), MOST_STEPS + self.loop.steps)
        working.result()

    # Workers

    def _start(self, crew: Crew) -> None:
        crew.starts += 1
        node = Node(crew.machine, f"w{crew.number}.{crew.starts}")
        chance = chance_of(crew.chance.getrandbits(64))
        guardian = GuardianProcess(self.loop, self.monitor, self._attempts, node, chance)
        crew.begin(node, guardian)
        self.monitor.note("start", node.name)
        node.run(self.loop.create_task, self._work(crew, node, guardian))

    def contend(self, crew: Crew) -> None:
        """Start the process of a place that contends for a name, where there is one and it does not run."""
        if crew.stands_still:
            self.later(1.0, self.contend, crew)
        elif self.named is not None and self._is_faulty and (crew.holder is None or crew.holder.dead):
            crew.starts += 1
            crew.holder = holder = Node(crew.machine, f"h{crew.number}.{crew.starts}")
            crew.holder_excused_until = -1.0
            chance = chance_of(crew.chance.getrandbits(64))
            work = contend(crew.link, self.named, holder, self.lease, self.scenario.settings, chance)
            holder.run(self.loop.create_task, work)

    async def _work(self, crew: Crew, node: Node, guardian: GuardianProcess) -> None:
        crew.stoppings[node] = stopping = Stopping()
        async with self._store.connect(crew.link, crew.machine) as backend:
            await self._work_at(backend, crew, node, guardian, stopping)
        self.later(crew.chance.uniform(0.5, 5), self.start_again, crew, node)

    async def _work_at(
        self, backend: Any, crew: Crew, node: Node, guardian: GuardianProcess, stopping: Stopping
    ) -> None:
        worker = worker_on(
            SimulatedHost(chance_of(crew.chance.getrandbits(64)), self._attempts.lines),
            backend,
            guardian,
            self.scenario.ping_seconds,
            settings=self.scenario.settings,
            clock=crew.machine,
            stopping=stopping,
            events=Events(lambda event: self._hear(node, event)),
            on_report=self.monitor.reported,
        )
        ended = "?"
        try:
            ended = str((await worker.run()).exit_code)
        except JobqError as error:
            ended = type(error).__name__
            was_killed = guardian.node.dead  # before its first word
            if not was_killed and (not isinstance(error, BackendUnavailable) or self.monitor.was_served(node)):
                self.monitor.broken("L4", f"{node.name} ended: {error!r}")
        except Exception as error:  # noqa: BLE001 - whatever ends a worker is a finding
            self.monitor.broken("L4", f"{node.name} ended: {error!r}")
        self.monitor.note("end", node.name, ended)
        self.monitor.worker_ended(node)
        guardian.worker_is_gone(0)

    def _hear(self, node: Node, event: Event) -> None:
        if event.name == "worker.breaker_tripped":
            self._blaming.add(node)

    def start_again(self, crew: Crew, node: Node) -> None:
        """Start the next worker in the place of the one that ran as this node."""
        if crew.stands_still:
            self.later(1.0, self.start_again, crew, node)
        elif crew.node is node:
            self._start(crew)
            if crew.holder is not None:
                self.contend(crew)

    # Faults

    def _strike(self) -> None:
        """Let one blow fall, then the next; each draws from a generator of its own."""
        if not self._is_faulty:
            return
        self._is_idle = self._has_nothing_to_do()
        chance = self._chance
        kinds = sorted(self.kinds & self._blows.keys())
        if kinds:
            kind, crew = chance.choice(kinds), chance.choice(self.crews)
            seconds = self.lease * chance.choice([0.02, 0.1, 0.3, 0.9, 1.2, 2.0])
            own = chance_of(chance.getrandbits(64))
            self.blows += 1
            if self.blows not in self._skip:
                has_struck = self._blows[kind](self, crew, seconds, own)
                self.monitor.note("fault", self.blows, kind, crew.machine.name, f"{seconds:.3f}", has_struck)
                if has_struck:
                    self.broker.fired(kind)
        self.later(self.lease * chance.expovariate(_BLOWS_A_LEASE), self._strike)

    def _heal(self) -> None:
        """All faults end: what is left must come to its end by itself (L1)."""
        self._is_faulty = self._attempts.is_faulty = False
        self.monitor.healed()
        self.broker.is_down = False
        for crew in self.crews:
            crew.link.calm()
            if crew.holder is not None:
                crew.holder.kill()
            if crew.lives:
                crew.call_off(0.0)

    def broker_is_back(self) -> None:
        """It takes connections again."""
        self.broker.is_down = False

    # What excuses; see `monitor.Circumstances`

    def excuses(self, tree: TaskTree) -> bool:
        """Return whether its machine stands still as a whole, or has just stood still."""
        return self._is_excused(tree.node)

    def _is_excused(self, node: Node) -> bool:
        return self._crew_of(node).excuses(node)

    def has_clock_trouble(self, node: Node) -> bool:
        """Return whether its clocks may have looked so."""
        return self._crew_of(node).has_clock_trouble(node)

    def is_stopping(self, node: Node) -> bool:
        """Return whether it has a reason to end what runs."""
        return self._crew_of(node).is_stopping(node)

    def blames_its_machine(self, node: Node) -> bool:
        """Return whether its breaker has tripped."""
        return node in self._blaming

    def _crew_of(self, node: Node) -> Crew:
        return self.crews[int(node.name[1:].partition(".")[0])]  # w0.3, h0.4

    # Faults of the product's own

    def _fault_of_the_loop(self, context: dict[str, Any]) -> None:
        self.monitor.broken("L4", f"{context['message']}: {context.get('exception')!r}")

    def _fault_of_a_log(self, record: logging.LogRecord) -> None:
        if record.exc_info and not self.loop.is_over:
            self.monitor.broken("L4", f"{record.getMessage()}: {record.exc_info[1]!r}")
