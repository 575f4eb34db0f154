"""A simulated kernel's processes: they fork, escape, fall to others, take their time to die, wait to be reaped.

What happens to them is reported to the monitor here, whatever the guardian believes.
"""

import os
from collections.abc import Callable
from itertools import count
from signal import SIGCHLD, SIGKILL, SIGTERM
from typing import Final

from jobq.run.guardian.protocol import Message
from tests.simulation.loop import Loop, Node
from tests.simulation.machine.process import Pipe, SimulatedProcess
from tests.simulation.machine.trees import TaskPlans, TaskTree
from tests.simulation.rules.monitor import Monitor

GUARDIAN: Final = 1000  # the number of the guardian, which leads the session of its worker too
WORKER: Final = 1001
_DEAF_SECONDS: Final = 0.1  # from the end of a worker until all that ran for it is killed (P2)
_TERM_SECONDS: Final = {"exit": 0.01, "slow": 3.0}


class Kernel:
    """The processes of one guardian.

    Args:
        loop: the run's.
        monitor: sees all that happens to trees.
        tasks: knows what they do.
        worker: for whom.
        notify: called when the guardian has a signal (its number), or something to read (0).

    Attributes:
        node: what tasks do by themselves; it stands still with its machine.
        processes: all that are not reaped, by number, oldest first.
        pipes: by the guardian's descriptor.
        worker: the guardian's child that is no task.
        is_guardian_stopped: whether it was sent SIGSTOP.
    """

    def __init__(
        self, loop: Loop, monitor: Monitor, tasks: TaskPlans, worker: Node, notify: Callable[[int], None]
    ) -> None:
        self._loop, self._monitor, self._tasks, self._owner, self._notify = loop, monitor, tasks, worker, notify
        self.node = Node(worker.machine, f"processes of {worker.name}")
        self.guardian = SimulatedProcess(GUARDIAN, None, GUARDIAN, None)
        self.worker = SimulatedProcess(WORKER, self.guardian, WORKER, None)
        self.processes: dict[int, SimulatedProcess] = {WORKER: self.worker}
        self.pipes: dict[int, Pipe] = {}
        self.is_guardian_stopped = False
        self._trees: dict[int, TaskTree] = {}  # by the worker's number, until it hears of their end
        self._descriptors = count(10)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of any task is left."""
        return not self.processes.keys() - {WORKER}

    def children(self) -> list[SimulatedProcess]:
        """Return those of the guardian."""
        return [each for each in self.processes.values() if each.parent is self.guardian]

    # Trees

    def start(self, message: Message) -> tuple[int, int]:
        """Fork a leader; return its number and the guardian's end of its pipe."""
        env, machine = message["env"], self._owner.machine
        task, fencing = env["JOBQ_TASK_ID"], env["JOBQ_LEASE_TOKEN"]
        tree = TaskTree(
            number=message["id"],
            task=task,
            fencing=fencing,
            plan=self._tasks.plan_of(task, fencing),
            node=self._owner,
            machine=machine,
            deadline=message["deadline"],
            socket=env.get("JOBQ_TASK_SOCKET", ""),
        )
        if self.worker.status is not None:
            self._monitor.broken("P2", f"{task} {fencing} is started for a worker that is dead")
        self._trees[tree.number] = tree
        leader = self._fork(tree, self.guardian)
        descriptor = next(self._descriptors)
        self.pipes[descriptor] = pipe = Pipe(tree)
        if tree.plan.fails:
            self._monitor.start_fails(tree)
            self._later(tree, tree.plan.start, self._fail, leader, pipe)
        else:
            tree.leader = True
            self._monitor.deadline_sent(tree)
            self._monitor.tree_started(tree)
            self._later(tree, tree.plan.start, self._exec, leader, pipe)
        return leader.number, descriptor

    def deadline_sent(self, number: int, deadline: float) -> None:
        """The worker sent its guardian the time by which a tree must be dead."""
        if (tree := self._trees.get(number)) is not None:
            tree.deadline = deadline
            if tree.leader:
                self._monitor.deadline_sent(tree)

    def end_reported(self, message: Message) -> None:
        """The guardian reported an end to its worker: nothing may live then (P3), and all of it must be true (P7)."""
        tree = self._trees.pop(message["id"])
        reported = -message["signal"] if message["signal"] else message["code"]
        if tree.lives and not message["survivors"]:
            self._monitor.broken("P3", f"{tree.task} {tree.fencing} is reported to have ended, and lives")
        if reported != os.waitstatus_to_exitcode(tree.status) or (tree.killed and not message["killed"]):
            truth = f"{os.waitstatus_to_exitcode(tree.status)}, killed: {tree.killed or 'no'}"
            self._monitor.broken("P7", f"{tree.task} {tree.fencing} ended with {truth}, and {message} is reported")

    def _fork(self, tree: TaskTree, parent: SimulatedProcess, group: int = 0) -> SimulatedProcess:
        # It is used again as soon as no process and no group has it (P4), as the kernel does it after a while.
        taken = self.processes.keys() | {each.group for each in self.processes.values()}
        number = next(free for free in count(WORKER) if free not in taken)
        process = SimulatedProcess(number, parent, group or number, tree)
        if parent is not self.guardian:
            process.leader = parent.leader
            tree.others += 1
        tree.unreaped += 1
        self.processes[number] = process
        return process

    def _later(self, tree: TaskTree, seconds: float, function: Callable[..., None], *args: object) -> None:
        """Call it in the machine's time: what tasks do stands still with the machine."""
        tree.timers.append(self.node.run(self._loop.call_later, seconds, function, *args))

    def _fail(self, leader: SimulatedProcess, pipe: Pipe) -> None:
        assert leader.tree is not None
        if leader.status is None and not leader.is_dying:
            pipe.data = b"program:%d" % leader.tree.plan.fails
            self.exit(leader, 127 << 8)

    def _exec(self, leader: SimulatedProcess, pipe: Pipe) -> None:
        tree = leader.tree
        if leader.status is not None or leader.is_dying:
            return
        assert tree is not None
        pipe.is_closed = True
        self._notify(0)
        tree.started = self._loop.now
        parent = leader
        for number in range(tree.plan.escapees):
            parent = self._fork(tree, parent if number % 2 else leader)
        self._later(tree, tree.plan.run, self._run_is_over, leader)
        for moment in tree.plan.saves:
            if moment < tree.plan.run:
                self._later(tree, moment, self._tasks.save, tree)

    def _run_is_over(self, leader: SimulatedProcess) -> None:
        tree = leader.tree
        assert tree is not None
        if leader.status is None and not leader.is_dying:
            if not tree.has_term:
                self._monitor.ends_by_itself(tree)
            tree.ended_by_itself = True  # a kill that comes now comes too late (P7)
            self._leave(leader, tree.plan.signal or tree.plan.code << 8)

    def _leave(self, leader: SimulatedProcess, status: int) -> None:
        """It exits, and others stay."""
        tree = leader.tree
        assert tree is not None
        if leader.status is None and not leader.is_dying:
            for _ in range(tree.plan.left):
                self._fork(tree, leader, leader.group)
            self.exit(leader, status)

    # Ends

    def exit(self, process: SimulatedProcess, status: int) -> None:
        """A process ends: its children fall to the nearest subreaper, and who is its parent hears of it."""
        if process.status is not None:
            return
        process.status = status
        tree = process.tree
        if tree is not None:
            if process.leader is process:
                tree.leader, tree.status = False, status
                for pipe in self.pipes.values():
                    pipe.is_closed |= pipe.tree is tree
            else:
                tree.others -= 1
            heir = process.leader if process.leader.status is None else self.guardian
            for each in self.processes.values():
                if each.parent is process:
                    each.parent = heir
        elif process is self.worker:
            self.look_for_orphans()
        if process.parent is self.guardian and self.guardian.status is None:
            self._notify(SIGCHLD)
        else:
            self.reap(process)

    def look_for_orphans(self) -> None:
        """What ran for a worker that is dead dies soon, unless the guardian is stopped (P2)."""
        if self.worker.status is not None:
            self.node.run(self._loop.call_later, _DEAF_SECONDS, self._check_orphans)

    def _check_orphans(self) -> None:
        if self.is_guardian_stopped:
            return
        for process in self.processes.values():
            tree = process.tree
            if tree is not None and process.leader is process and process.status is None and not process.is_dying:
                self._monitor.broken("P2", f"{tree.task} {tree.fencing} lives on without its worker")

    def reap(self, process: SimulatedProcess) -> int:
        """Forget one that has ended; return its status."""
        assert process.status is not None
        del self.processes[process.number]
        tree = process.tree
        if tree is not None:
            tree.unreaped -= 1
            if not tree.unreaped:
                self._is_over(tree)
        return process.status

    def _is_over(self, tree: TaskTree) -> None:
        tree.is_over = True
        for timer in tree.timers:
            timer.cancel()
        if not tree.plan.fails:
            self._monitor.tree_ended(tree)

    def power_is_gone(self) -> None:
        """So is every process, in this instant."""
        trees = dict.fromkeys(each.tree for each in self.processes.values())
        self.processes.clear()
        self.node.kill()
        for tree in trees:
            if tree is not None:
                tree.leader, tree.others = False, 0
                self._is_over(tree)

    def guardian_dies(self) -> None:
        """Its children fall to somebody who reaps them, and each leader is killed by the kernel (PDEATHSIG)."""
        self.guardian.status = SIGKILL
        for process in list(self.processes.values()):
            if process.status is not None:
                self.reap(process)
            elif process.tree is not None and process.leader is process:
                self.strike(process, SIGKILL)

    # Signals

    def strike(self, process: SimulatedProcess, number: int) -> None:
        """A signal reaches a process."""
        tree = process.tree
        if process.status is not None or process.is_dying or tree is None:
            return
        if number == SIGKILL:
            process.is_dying = True
            if process.leader is process and not tree.plan.fails:
                is_late = tree.deadline is not None and tree.deadline <= tree.machine.boottime()
                tree.killed = "deadline" if is_late else "asked"
                self._monitor.killed(tree, tree.killed)
            self._later(tree, tree.plan.death / tree.plan.depth, self.exit, process, int(SIGKILL))
        elif number == SIGTERM and process.leader is process and tree.plan.on_term in _TERM_SECONDS:
            status = 143 << 8 if tree.plan.on_term == "slow" else int(SIGTERM)
            self._later(tree, _TERM_SECONDS[tree.plan.on_term], self._leave, process, status)

    def strike_group(self, group: int, number: int) -> bool:
        """A signal reaches a process group; return whether there is one."""
        members = [each for each in self.processes.values() if each.group == group]
        tree = members[0].tree if members else None
        if number != SIGKILL and tree is not None and not tree.plan.fails and not tree.is_over:
            self._monitor.signaled(tree, number)
            tree.has_term = True
        for process in members:
            self.strike(process, number)
        return bool(members)
