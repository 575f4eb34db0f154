"""The mutants that the simulation must find: each breaks a rule in some run of the first 120.

A SIGTERM that comes too late is not among them: the guardian kills first, so that nothing comes of it.
"""

from typing import Final

from tests.mutants.mutant import Mutant

_TEST: Final = "tests/simulation/test_lab.py::test_no_rule_is_broken"

_EMBEDDED_TEST: Final = f"{_TEST}_on_the_machine_of_the_store"
_KERNEL_TEST: Final = "tests/simulation/test_kernel.py"


def _found(name: str, file: str, text: str, wrong: str, test: str = _TEST) -> Mutant:
    return Mutant(name=name, file=file, text=text, wrong=wrong, test=test)


_KEEPER: Final = "jobq/lease/keeper.py"
_RETRY: Final = "jobq/run/attempt/retry.py"
_SUPERVISOR: Final = "jobq/run/attempt/supervisor.py"
_STORE: Final = "backends/jobq_memory/queue_state.py"
_RULES: Final = "jobq/lease/rules.py"
_WORKER: Final = "jobq/run/worker/worker.py"
_GUARDIAN: Final = "jobq/run/guardian/loop.py"
_TREES: Final = "jobq/run/guardian/tasks.py"
_INBOX: Final = "jobq/run/guardian/inbox.py"

SIMULATED: Final[tuple[Mutant, ...]] = (
    _found(
        "rule 1: the time is taken after the receive",
        _WORKER,
        "                since = Moment.of(self._clock)  # rule 1: before the request that grants the leases\n"
        "                deliveries = await receiving.receive(supervisor.lease, self._empty.wait())\n",
        "                deliveries = await receiving.receive(supervisor.lease, self._empty.wait())\n"
        "                since = Moment.of(self._clock)\n",
    ),
    _found(
        "rule 1: the time is taken after a renewal's answer",
        _KEEPER,
        "            self._since = sent\n",
        "            self._since = self._clock.boottime()\n",
    ),
    _found(
        "rule 2: no margin",
        "jobq/lease/timing.py",
        "return min(0.85 * self.lease, 0.99 * self.lease - self.kill_margin - self.schedule_margin)",
        "return self.lease",
    ),
    _found(
        "rule 3: no answer moves the deadline",
        _KEEPER,
        '                self._note_trouble(f"{type(error).__name__}: {error}")\n                return False\n',
        "                self._since = sent\n"
        "                if self._on_extended is not None:\n"
        "                    self._on_extended(self.deadline)\n"
        "                return False\n",
    ),
    _found(
        "rule 5: an old receive is not confirmed",
        _KEEPER,
        "        if not self._is_stale() and not self._jump():\n            return True",
        "        if True:\n            return True",
    ),
    _found(
        "rule 7: the guardian does not hear of a new deadline",
        _SUPERVISOR,
        "            on_extended=self._deadline.move,\n",
        "            on_extended=None,\n",
    ),
    _found(
        "rule 12: a suspend ends the leases of this machine's file",
        _KEEPER,
        "        if (ahead := self._jump()) and self._is_stores:",
        "        if (ahead := self._jump()) and ahead < 0:",
        _EMBEDDED_TEST,
    ),
    _found(
        "rule 12: the guardian kills after a suspend what no one could take",
        _GUARDIAN,
        "> 0 and not self._system.has_stores_clock:",
        "> 0:",
        _EMBEDDED_TEST,
    ),
    _found(
        "rule 9: a settle does not wait for a renewal that is on its way",
        _KEEPER,
        "        async with self._serial:\n            try:\n                await self._send(verb,",
        "        if True:\n            try:\n                await self._send(verb,",
    ),
    _found(
        "S4: no fencing of a settlement",
        _STORE,
        "        self._fence(grant, settlement.verb)\n",
        "",
    ),
    _found("S4: no fencing by time", _STORE, "if held and entry.expires > self._clock.boottime():", "if held:"),
    _found("S4: no fencing of a checkpoint", _STORE, '        self._fence(grant, "checkpoint")\n', ""),
    _found(
        "S9: a late checkpoint undoes a newer one",
        _STORE,
        "if order < grant.entry.checkpoint_order:",
        "if False:",
    ),
    _found(
        "S3: a redrive does not raise the epoch",
        "jobq/task.py",
        '"epoch": epoch, "not_before": None, "counters": fresh',
        '"not_before": None, "counters": fresh',
    ),
    _found(
        "S7: failures are not counted",
        _RETRY,
        "return Requeue(counters.raised(failures=1), backoff.delay(counters.failures + 1))",
        "return Requeue(counters.raised(), backoff.delay(counters.failures + 1))",
    ),
    _found(
        "S7: a preemption costs a retry",
        _RETRY,
        "            return Requeue(task.counters.raised(preemptions=1))\n        case OutcomeKind.FAILED",
        "            return Requeue(task.counters.raised(failures=1))\n        case OutcomeKind.FAILED",
    ),
    _found(
        "S7: what is given back counts as a crash",
        "jobq/task.py",
        "ends, misfits = self.counters.ends + 1,",
        "ends, misfits = self.counters.ends,",
    ),
    _found("S7: crashes are forgiven for ever", _RETRY, "if crashes <= task.budgets.crashes:", "if True:"),
    _found(
        "slots: one is free before its tree is dead",
        _SUPERVISOR,
        "        outcome = await self._attempt(task)\n        self._free_slot()",
        "        self._free_slot()\n        outcome = await self._attempt(task)",
    ),
    _found(
        "P1: an end is told before the tree is dead",
        "jobq/run/spawn/guarded_process.py",
        '        self._send({"op": "kill", "id": self.number})\n',
        '        self._send({"op": "kill", "id": self.number})\n'
        "        self.ended.done() or self.ended.set_result(ExitStatus(signal=9))\n",
    ),
    _found(
        "S5: no answer is told as success",
        "jobq/run/attempt/settle.py",
        "            hopeless = not repeats_doubt\n",
        "            return Settled.YES\n",
    ),
    _found(
        "S5: the repetition of a settle is refused",
        _STORE,
        "if entry.settled.get(grant.receipt) == settlement.key:",
        "if False:",
    ),
    _found(
        "S3: a renewal does not move the expiry",
        _STORE,
        '        self._schedule.lease(grant.entry)\n        self._note("renewed"',
        '        self._note("renewed"',
    ),
    _found(
        "S1: acknowledged before it is stored",
        _STORE,
        "        for entry in new.values():\n            self._add(entry)",
        "        for entry in list(new.values())[:2]:\n            self._add(entry)",
    ),
    _found(
        "S8: what is pushed again is added again",
        _STORE,
        "known = self.entries.get(task.id) or new.get(task.id)",
        "known = None",
    ),
    _found(
        "numbers of processes are used again",
        "jobq/run/spawn/guardian_spawner.py",
        "self._numbers += 1",
        "self._numbers = self._numbers % 2 + 1",
    ),
    _found(
        "slots: more is taken than there is room for",
        _WORKER,
        "free=lambda: int(min(self._free(), self._left, self._gate.most_at_once or math.inf)),",
        "free=lambda: int(min(self._free(), self._left, self._gate.most_at_once or math.inf)) + 1,",
    ),
    _found(
        "L4: a worker ends when the broker refuses for a while",
        "jobq/run/worker/receive.py",
        "if not self._was_served and now - began >= _PATIENCE_SECONDS:",
        "if now - began >= _PATIENCE_SECONDS:",
    ),
    _found(
        "a cancel is not heard",
        "jobq/run/attempt/attempt_journal.py",
        "return self._cancel.future()",
        "return Flag().future()",
    ),
    _found(
        "L4: a word that came while the worker was stopped is taken for silence",
        "jobq/run/spawn/guardian_spawner.py",
        "            await asyncio.wait([self._hello], timeout=HELLO_SECONDS)\n"
        "            if not self._hello.done():\n",
        "            try:\n"
        "                async with asyncio.timeout(HELLO_SECONDS):\n"
        "                    await self._hello\n"
        "            except TimeoutError:\n",
        "tests/guardian/test_spawner.py::test_l4_a_worker_that_was_stopped_while_it_started_goes_on",
    ),
    _found(
        "S10: a name is granted while it is held",
        _RULES,
        "if row.state == RELEASED or now >= row.expires_at:",
        "if True:",
    ),
    _found("S9: a late cursor undoes a newer one", _RULES, "if version <= row.version:", "if False:"),
    _found("S3: a name's token is given twice", _RULES, "token=row.token + 1,", "token=max(1, row.token),"),
    _found("S4: no fencing of a named lease by time", _RULES, " or row.state != HELD or now >= row.expires_at:", ":"),
    _found(
        "S5: what failed is told as done",
        _RETRY,
        "            if counters.failures >= budgets.retries:\n"
        "                return MoveToDeadLetters(_failure(outcome), _description",
        "            if counters.failures < budgets.retries:\n                return Complete()\n"
        "            if True:\n                return MoveToDeadLetters(_failure(outcome), _description",
    ),
    _found(
        "S7: the first failure is the last",
        _RETRY,
        "            if counters.failures >= budgets.retries:\n"
        "                return MoveToDeadLetters(_failure(outcome), _description",
        "            if counters.failures >= 0:\n"
        "                return MoveToDeadLetters(_failure(outcome), _description",
    ),
    _found(
        "P1: the guardian kills nothing that is overdue", _GUARDIAN, "            self._tasks.kill_overdue(now)\n", ""
    ),
    _found(
        "P1: of several that are overdue the guardian kills one",
        _TREES,
        '                self.kill(leader, "deadline")\n',
        '                self.kill(leader, "deadline")\n                break\n',
        "tests/simulation/test_kernel.py::test_p1_all_that_are_overdue_are_killed_in_one_turn",  # 120 seeds did not
    ),
    _found(
        "rule 7: the guardian takes no later deadline",
        _INBOX,
        "            leader.deadline = deadline\n            return",
        "            leader.deadline = min(leader.deadline, deadline)\n            return",
    ),
    _found(
        "rule 8: the guardian does not notice a freeze",
        "jobq/run/guardian/freeze.py",
        "return ahead if ahead > AHEAD_SECONDS",
        "return 0.0 if ahead > AHEAD_SECONDS",
    ),
    _found(
        "P2: the guardian outlives its worker, and kills nothing", _GUARDIAN, "        self._tasks.kill_all()\n", ""
    ),
    _found(
        "P2: of what ran for a dead worker the guardian kills one",
        _TREES,
        '            self.kill(leader, "asked")\n',
        '            self.kill(leader, "asked")\n            break\n',
    ),
    _found(
        "P3: what leaves a task's group lives on",
        _TREES,
        "            kernel.kill_stray(pid,",
        "            kernel.is_dead(pid) or (pid,",
    ),
    _found(
        "P3: an end is told before strays are dead",
        _TREES,
        "            if own and now < leader.sweep_until + (0 if all_reaped else REAP_SECONDS):",
        "            if False:",
    ),
    _found(
        "P3: a guardian that is stopped waits for the dead meanwhile",
        "jobq/run/guardian/running_clock.py",
        "min(now - self._looked, MOST_SECONDS)",
        "now - self._looked",
        f"{_KERNEL_TEST}::test_p3_a_guardian_that_is_stopped_does_not_wait_meanwhile",
    ),
    _found(
        "P1: a start past its deadline is forked",
        "jobq/run/guardian/starts.py",
        "if deadline is not None and deadline <= self._system.boottime():",
        "if False:",
        f"{_KERNEL_TEST}::test_p1_nothing_is_started_past_its_deadline",
    ),
    _found(
        "P1: a start is refused by a deadline that a renewal has moved",
        _GUARDIAN,
        "if self._inbox.is_late(self._system.boottime()) and not self._inbox.catch_up():",
        "if False:",
        f"{_KERNEL_TEST}::test_p1_nothing_is_started_past_its_deadline",
    ),
    _found(
        "P4: a stray with the number of an earlier one is not killed",
        _TREES,
        "        self._killed.pop(pid, None)\n",
        "",
    ),
    _found(
        "P7: a kill by the guardian is not told",
        _TREES,
        "        leader.killed = leader.killed or why\n",
        "",
    ),
    _found(
        "P7: a start that failed is told to have ended, too",
        _GUARDIAN,
        "                self._send(leader.failure or leader.ended)\n",
        "                self._send(leader.failure or leader.ended)\n                self._send(leader.ended)\n",
    ),
)
