"""A1: work that a producer has signed stays as it was written, wherever a message goes."""

from jobq.formats.wire_v3 import Signature, work_in
from jobq.settlement import Complete, MoveToDeadLetters, Release, Requeue
from jobq.task import Task
from jobq.testing.cases import case
from jobq.testing.harness import DONE, NOW, Bench, task

_SPILLS_BYTES = 100_000  # more than a message of a Storage Queue holds


@case()
async def work_is_kept_as_it_was_written(bench: Bench) -> None:
    """Requeue, release, crash, dead letter and redrive keep the text of small and large work and its signatures."""
    for command in ("true", "x" * min(_SPILLS_BYTES, (bench.capabilities.max_message_bytes or _SPILLS_BYTES) // 2)):
        pushed = _signed(command)
        await bench.backend.push([pushed])
        for counters in ({"failures": 1}, {"preemptions": 1}):
            delivery = await bench.take_id(pushed.id)
            _compare(delivery.task, pushed)
            await delivery.settle(Requeue(delivery.task.requeued(**counters).counters, NOW))
        await (await bench.take_id(pushed.id)).settle(Release())
        _compare((await bench.take_id(pushed.id)).task, pushed)
        await bench.expire()
        delivery = await bench.take_id(pushed.id)
        assert delivery.task.counters.failures == 1
        await delivery.settle(MoveToDeadLetters("failures", ""))
        (letter,) = await bench.backend.dead_letters(10)
        _compare(Task.decode(letter.body), pushed)
        await bench.backend.redrive([letter.id])
        _compare(Task.decode((await bench.backend.peek(10))[0].body), pushed)
        delivery = await bench.take_id(pushed.id)
        _compare(delivery.task, pushed)
        assert delivery.task.epoch > pushed.epoch
        await delivery.settle(Complete(DONE))


def _signed(command: str) -> Task:
    """Return a task whose work is written as no jobq writes it; backends do not check signatures."""
    given = task(command=command, env={"A": "ü"})
    text = f'{{ "id" : "{given.id}",\t"env":{{"B":"1","A":"\\u00fc"}},  "command":"{command}", "timeout":1.50 }}'
    work, fields = work_in(text, (Signature("someone", b"\x00signature\xff"),))
    return Task.new(**{**fields, "created": None}, work=work)


def _compare(found: Task, pushed: Task) -> None:
    assert found.work == pushed.work, "its text, and who signed it"
    assert (found.id, found.command, found.env, found.timeout) == (pushed.id, pushed.command, pushed.env, 1.5)
