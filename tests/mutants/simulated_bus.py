"""The mutants of Service Bus that its simulation must find: each breaks a rule in some of the runs of one test.

Two come too seldom there; the emulator's own tests find those at once.
"""

from typing import Final

from tests.mutants.mutant import Mutant

_TEST: Final = "tests/simulation/test_lab.py::test_no_rule_is_broken_by_the_copies_of_service_bus"
_FOLDER: Final = "backends/jobq_azure/service_bus"


def _found(name: str, file: str, text: str, wrong: str, test: str = _TEST) -> Mutant:
    return Mutant(name=f"{name} (Service Bus)", file=file, text=text, wrong=wrong, test=test)


_DELIVERY: Final = f"{_FOLDER}/delivery.py"
_FORMAT: Final = f"{_FOLDER}/message_format.py"
_LETTERS: Final = f"{_FOLDER}/dead_letters.py"
_RECEIVE: Final = f"{_FOLDER}/message_receiver.py"

SIMULATED_BUS: Final[tuple[Mutant, ...]] = (
    _found(
        "S1: copies are named without the sequence number",
        _FORMAT,
        '":".join(map(str, (original.number, *parts, secret)))',
        '":".join(map(str, (*parts, secret)))',
    ),
    _found(
        "S1: the original is completed before its copy is sent",
        _DELIVERY,
        "            try:\n                await self._wire.send(message)",
        "            await self._wire.complete(self._locked)\n"
        "            try:\n                await self._wire.send(message)",
    ),
    _found(
        "S1: a letter is deleted before its task is back",
        _LETTERS,
        "                ours = await self._sent(ours, refused)\n",
        "                await self._delete(ours)\n                ours = await self._sent(ours, refused)\n",
    ),
    _found(
        "S1: what is redriven is named like the task",
        _FORMAT,
        "name = copy_name(original, task.epoch, task.generation, kind=REDRIVEN)\n",
        "name = task.id\n",
    ),
    _found(
        "S3: what is given back stays in its generation",
        _DELIVERY,
        "task = self.task.requeued(misfits=release.misfits)",
        "task = self.task.released()",
    ),
    _found("S3: a copy forgets how often it was delivered", _FORMAT, "{BEFORE: before, ", "{BEFORE: 0, "),
    _found(
        "S4: who has lost the lock sends a copy",
        _DELIVERY,
        "now, _ = await self._wire.renew(self._locked)  # the fence: who lost",
        "now = self._locked.enqueued  # the fence: who lost",
    ),
    _found(
        "S4: a request does not wait for the one before",
        "backends/jobq_azure/common/request_chain.py",
        "while self._sent is not None and not self._sent.done():",
        "while False:",
    ),
    _found(
        "S5: a clone that was sent is sent again",
        _DELIVERY,
        "            self._sent = message\n",
        "            pass\n",
        "tests/sb/test_requeues.py::test_a_requeue_that_is_repeated_sends_one_clone",
    ),
    _found(
        "S5: what may land late is told as lost",
        "jobq/run/attempt/settle.py",
        "doubt = doubt or isinstance(error, AnswerLost)",
        "pass",
        "tests/sb/test_locks.py::test_s5_what_may_land_late_is_told_as_unknown",
    ),
    _found(
        "L2: what an abandoned poll brought is dropped",
        _RECEIVE,
        "                if (locked := self._brought(poll)) is None:\n                    continue\n",
        "                if (locked := self._brought(poll)) is None or most:\n                    continue\n",
    ),
    _found(
        "rule 5: what an abandoned poll brought is not renewed",
        _RECEIVE,
        "                    await self._wire.renew(locked)\n",
        "                    pass\n",
    ),
    _found(
        "S5: a give-back only unlocks",
        _DELIVERY,
        "            await self._put_back(task, release.delay)\n",
        '            await self._settle("unlock", lambda: self._wire.unlock(self._locked))\n',
    ),
    _found(
        "S5: no answer is told as success",
        _DELIVERY,
        "from None  # it may land yet\n                raise\n",
        "from None  # it may land yet\n",
    ),
    _found(
        "S8: a push has a name of its own each time",
        _FORMAT,
        "message_id=task.id, at=task.not_before",
        'message_id=__import__("uuid").uuid4().hex, at=task.not_before',
    ),
)
