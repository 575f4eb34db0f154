"""A simulated process table and guardian: trees that live, fork, escape, ignore SIGTERM and take their time to die.

The worker's side is the real spawner; of the guardian is modelled what RELIABILITY promises of it: it kills at the
deadline by its own clock and when its two clocks part, it kills all when its worker dies, it tells an end only when
nothing of the tree is left, and what it leaves when it dies itself, others kill.
"""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from signal import SIGCONT, SIGKILL, SIGTERM
from typing import Any, Final, Protocol

from jobq.lease.keeper import FREEZE_RATE, FREEZE_SECONDS
from jobq.run.guardian import protocol
from jobq.run.guardian.protocol import Message
from jobq.testing.simulation.host import Connection
from jobq.testing.simulation.loop import Loop, Machine, Node
from jobq.testing.simulation.monitor import Monitor

_SIGNAL_SECONDS: Final = 0.0002  # from a write to the socket until the other side reads
_TICK_SECONDS: Final = 1.0  # between two looks of the guardian at both clocks
_DEAF_SECONDS: Final = 0.05  # from the death of a worker or guardian until what it ran is killed, at most
_TERM_SECONDS: Final = {"exit": 0.01, "slow": 3.0}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one attempt will do, decided before it starts; all times in seconds.

    Attributes:
        start: from fork to exec.
        fails: the errno of a start that does not succeed; 0 = it does.
        run: how long it runs by itself.
        code: its exit code then.
        signal: it dies by this one instead; 0 = it does not.
        on_term: "exit", "ignore" or "slow".
        escapees: how many processes leave the group.
        left: how many are still there when the leader exits.
        death: from SIGKILL until the last of the tree is reaped.
        saves: moments at which it saves a checkpoint.
    """

    start: float = 0.002
    fails: int = 0
    run: float = 1.0
    code: int = 0
    signal: int = 0
    on_term: str = "exit"
    escapees: int = 0
    left: int = 0
    death: float = 0.002
    saves: tuple[float, ...] = ()


@dataclass(eq=False, kw_only=True)
class Tree:
    """One attempt's processes.

    Attributes:
        number: that worker and guardian know it by.
        node: the worker that asked for it.
        leader: whether the first process lives; others: how many beside it.
        killed: why; "" = it was not.
        started: the true time of its exec.
        is_told: whether its worker was told that it started.
    """

    number: int
    task: str
    fencing: str
    plan: Plan
    node: Node
    machine: Machine
    deadline: float | None
    socket: str
    leader: bool = False
    others: int = 0
    killed: str = ""
    started: float = 0.0
    is_over: bool = False
    ended_by_itself: bool = False
    has_term: bool = False
    is_told: bool = False
    timers: list[Any] = field(default_factory=list)

    @property
    def lives(self) -> bool:
        """Whether any of it does."""
        return self.leader or self.others > 0


class Tasks(Protocol):
    """Knows what tasks do."""

    def plan_of(self, task: str, fencing: str) -> Plan:
        """Return what an attempt does; the same for the same attempt."""
        ...

    def save(self, tree: Tree) -> None:
        """Have a task save a checkpoint now."""
        ...


class Guardian:
    """The parent of one worker's tasks; a node of its own, so it runs while the worker is stopped.

    Args:
        loop: the run's.
        monitor: sees all that happens to trees.
        tasks: knows what they do.
        worker: for whom.
        chance: decides how late it is.

    Attributes:
        connection: the worker's end of the socket.
        node: itself; kernel: what tasks do by themselves. Both stand still with their machine.
        lateness: seconds by which a deadline may be missed for want of a processor, at most.
    """

    def __init__(self, loop: Loop, monitor: Monitor, tasks: Tasks, worker: Node, chance: Random) -> None:
        self._loop, self._monitor, self._tasks, self._worker, self._chance = loop, monitor, tasks, worker, chance
        self._machine = worker.machine
        self.node = Node(self._machine, f"guardian of {worker.name}")
        self.kernel = Node(self._machine, f"processes of {worker.name}")
        self.lateness = 0.02
        self._trees: dict[int, Tree] = {}
        self._pids = 1000
        self._is_connected = True
        self._nothing_lives = asyncio.Event()
        self._timer: Any = None
        self.connection = Connection(loop, self._hear, self.worker_is_gone)
        loop.true_later(chance.uniform(0.02, 0.5), self.node, self._say_hello)

    # What befalls it

    def worker_is_gone(self) -> None:
        """The kernel says at once that the worker has ended: everything that ran for it dies (P2)."""
        self._leave(self.node)

    def signal(self, number: int) -> None:
        """It gets a signal."""
        if number == SIGCONT and self.node.pauses:
            self.node.resume()
        elif number == SIGKILL:
            self.die()

    def die(self) -> None:
        """It is killed: its worker hears of it, and what it left falls to the watcher, which kills that (P2)."""
        if not self.node.dead:
            self.node.kill()
            self.connection.hang_up()
            self._leave(self.kernel)

    async def nothing_lives(self) -> None:
        """Return once it has died and all that it left is dead."""
        await self._nothing_lives.wait()

    def power_is_gone(self) -> None:
        """So is every process, in this instant."""
        self._is_connected = False
        for tree in list(self._trees.values()):
            tree.leader, tree.others, tree.is_over = False, 0, True
            self._monitor.tree_ended(tree)
        self._trees.clear()
        self.node.kill()
        self.kernel.kill()

    def _leave(self, killer: Node) -> None:
        if self._is_connected:
            self._is_connected = False
            self._loop.true_later(self._chance.uniform(0.01, 1.0) * _DEAF_SECONDS, killer, self._kill_all)

    # What it is told, and says

    def _hear(self, message: Message) -> None:
        if self._is_connected:
            self._loop.true_later(_SIGNAL_SECONDS, self.node, self._obey, message)

    def _say_hello(self) -> None:
        self._tell(op="hello", version=protocol.VERSION, pid=1, group="", namespaces=False, why="")

    def _tell(self, **message: object) -> None:
        if self._is_connected:
            self.connection.arrived(protocol.encode(message), _SIGNAL_SECONDS, self._worker)

    def _obey(self, message: Message) -> None:
        tree = self._trees.get(message["id"])
        match message["op"]:
            case "ping":
                self._tell(op="pong", id=0)
            case "spawn" if self._is_connected:
                self._spawn(message)
            case "extend" if tree is not None:
                tree.deadline = message["deadline"]
                self._monitor.deadline_told(tree)
                self._arm()
            case "signal" if tree is not None:
                self._signal(tree, message["number"])
            case "kill" if tree is not None:
                self._kill(tree, "asked")

    # Trees

    def _spawn(self, message: Message) -> None:
        env = message["env"]
        task, fencing = env["JOBQ_TASK_ID"], env["JOBQ_LEASE_TOKEN"]
        tree = Tree(
            number=message["id"],
            task=task,
            fencing=fencing,
            plan=self._tasks.plan_of(task, fencing),
            node=self._worker,
            machine=self._machine,
            deadline=message["deadline"],
            socket=env.get("JOBQ_TASK_SOCKET", ""),
        )
        if tree.deadline is not None and tree.deadline <= self._machine.boottime():
            self._tell(op="failed", id=tree.number, errno=errno.ECANCELED, at="program")
            return
        if not self._trees:
            self._seen = self._machine.boottime(), self._machine.wall()
            self.node.run(self._loop.call_later, _TICK_SECONDS, self._look_at_clocks)
        self._trees[tree.number] = tree
        if tree.plan.fails:
            self._later(tree, tree.plan.start, self._fail, tree)
            return
        tree.leader = True
        self._monitor.deadline_told(tree)
        self._monitor.tree_started(tree)
        self._later(tree, tree.plan.start, self._exec, tree)
        self._arm()

    def _fail(self, tree: Tree) -> None:
        del self._trees[tree.number]
        self._tell(op="failed", id=tree.number, errno=tree.plan.fails, at="program")

    def _exec(self, tree: Tree) -> None:
        if not tree.leader or tree.killed:
            return
        tree.others = tree.plan.escapees
        tree.started = self._loop.now
        self._tell_start(tree)
        self._later(tree, tree.plan.run, self._run_is_over, tree)
        for moment in tree.plan.saves:
            if moment < tree.plan.run:
                self._later(tree, moment, self._tasks.save, tree)

    def _tell_start(self, tree: Tree) -> None:
        tree.is_told = True
        self._pids += 1
        self._tell(op="started", id=tree.number, pid=self._pids, handle=False)

    def _later(self, tree: Tree, seconds: float, function: Callable[..., None], *args: object) -> None:
        """Call it in the machine's time: what tasks do stands still with the machine."""
        tree.timers.append(self.kernel.run(self._loop.call_later, seconds, function, *args))

    def _run_is_over(self, tree: Tree) -> None:
        if tree.leader and not tree.is_over:
            if not tree.has_term:
                self._monitor.ends_by_itself(tree)
            tree.ended_by_itself = True  # a kill that comes now comes too late (P7)
            self._leader_exits(tree, tree.plan.code, tree.plan.signal)

    def _leader_exits(self, tree: Tree, code: int, signal: int) -> None:
        if not tree.leader or tree.is_over:
            return
        tree.leader = False
        tree.others += tree.plan.left
        if tree.others:  # what it leaves behind falls to the guardian, which kills it
            self._later(tree, tree.plan.death, self._all_dead, tree, code, signal)
        else:
            self._all_dead(tree, code, signal)

    def _all_dead(self, tree: Tree, code: int, signal: int) -> None:
        tree.leader, tree.others = False, 0
        if tree.is_over:
            return
        tree.is_over = True
        for timer in tree.timers:
            timer.cancel()
        self._monitor.tree_ended(tree)
        self._trees.pop(tree.number, None)
        self._end_if_nothing_lives()
        if not tree.is_told:
            self._tell_start(tree)
        self._tell(
            op="ended",
            id=tree.number,
            code=None if signal else code,
            signal=signal or None,
            cpu_seconds=None,
            max_rss_bytes=None,
            killed=tree.killed,
            survivors=0,
        )

    def _signal(self, tree: Tree, number: int) -> None:
        self._monitor.signaled(tree, number)
        if number == SIGKILL:
            self._kill(tree, "asked")
            return
        tree.has_term = True
        if number == SIGTERM and tree.leader and not tree.killed and tree.plan.on_term in _TERM_SECONDS:
            ends = (143, 0) if tree.plan.on_term == "slow" else (0, int(SIGTERM))
            self._later(tree, _TERM_SECONDS[tree.plan.on_term], self._leader_exits, tree, *ends)

    def _kill(self, tree: Tree, why: str) -> None:
        if not tree.killed and not tree.is_over:
            tree.killed = why
            self._monitor.killed(tree, why)
            self._later(tree, tree.plan.death, self._all_dead, tree, 0, int(SIGKILL))

    def _kill_all(self) -> None:
        for tree in list(self._trees.values()):
            self._kill(tree, "asked")
        self._end_if_nothing_lives()

    def _end_if_nothing_lives(self) -> None:
        if not self._is_connected and not self._trees:
            self._nothing_lives.set()
            self.node.kill()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        moments = [tree.deadline for tree in self._trees.values() if tree.deadline is not None and not tree.killed]
        if moments:
            late = min(self._chance.expovariate(1.0) * 0.002, self.lateness)
            due = self._machine.monotonic_at(min(moments) + late)
            self._timer = self.node.run(self._loop.call_at, due, self._kill_overdue)

    def _kill_overdue(self) -> None:
        now = self._machine.boottime()
        for tree in list(self._trees.values()):
            if tree.deadline is not None and tree.deadline <= now:
                self._kill(tree, "deadline")
        self._arm()

    def _look_at_clocks(self) -> None:
        boottime, wall = self._machine.boottime(), self._machine.wall()
        passed = boottime - self._seen[0]
        if wall - self._seen[1] - passed > FREEZE_SECONDS + FREEZE_RATE * passed:
            for tree in list(self._trees.values()):
                self._kill(tree, "deadline")
        self._seen = boottime, wall
        self._kill_overdue()  # its timer has stood still in a suspend
        if self._trees:
            self.node.run(self._loop.call_later, _TICK_SECONDS, self._look_at_clocks)
