"""Letters of strangers: who may add messages writes any id, origin and number beside any body, and signs nothing."""

import json

import pytest

from jobq.batch_ids import IdInBatch
from jobq.errors import ConfigurationError
from jobq.formats.task_fields import MAX_EPOCH
from jobq.formats.wire_v3 import Signature, work_in
from jobq.settlement import Complete, MoveToDeadLetters
from jobq.task import Task
from jobq.testing.harness import DONE
from jobq_azure.common.letter_work import work_of
from jobq_azure.storage.message_format import MessageContent, MessageNotes
from tests.azure.stage import Stage, make_container


def signed(id_: str, command: str, signature: bytes = b"real") -> Task:
    """Return a task as who has a key has signed it, or who has none."""
    text = json.dumps({"id": id_, "command": command})
    return Task.new(id=id_, command=command, work=work_in(text, (Signature("k", signature),))[0])


async def _buried(stage: Stage, task: Task) -> str:
    """Return the origin of the letter of a task."""
    await stage.backend.push([task])
    await (await stage.take()).settle(MoveToDeadLetters("failed", "real"))
    (letter,) = await (await stage.wire(f"{stage.queue}-failed")).peek(1)
    story = MessageContent.read(letter.text).beside.dead
    assert story is not None
    return str(story["origin"])


async def _add(stage: Stage, task: Task, origin: str, **more: object) -> None:
    """Add a letter of the highest numbers, as a stranger does."""
    story = {
        "id": task.id,
        "origin": origin,
        "epoch": MAX_EPOCH,
        "died": 1e9,
        "reason": "failed",
        "description": "spam",
    }
    notes = MessageNotes(dead=story | more)
    await (await stage.wire(f"{stage.queue}-failed")).put(MessageContent(task.encode(), notes).text())


@pytest.mark.parametrize("told", ["harmless", "real"], ids=["under its own id", "under the other's id"])
async def test_a_letter_that_names_anothers_origin_hides_it_not(stage: Stage, told: str) -> None:
    """A purge of the stranger's deleted the signed task's; a retry sent the stranger's work in its place."""
    origin = await _buried(stage, signed("real", "echo real"))
    await _add(stage, Task.new(id="harmless", command="echo spam"), origin, id=told)
    assert sorted(each.id for each in await stage.backend.dead_letters(10)) == ["harmless", "real"]
    assert await stage.backend.purge_dead(["harmless"]) == ["harmless"]
    assert await stage.backend.redrive(["real"]) == ["real"]
    back = await stage.take()
    assert back.task.command == "echo real"
    await back.settle(Complete(DONE))


async def test_a_letter_of_anothers_id_is_purged_apart(stage: Stage) -> None:
    """An id alone means both; what a list has shown says which."""
    origin = await _buried(stage, signed("real", "echo real"))
    await _add(stage, signed("real", "echo real", b"forged"), origin)
    letters = {each.description: each for each in await stage.backend.dead_letters(10)}
    assert sorted(letters) == ["real", "spam"]
    with pytest.raises(ConfigurationError, match="2 dead letters have the id 'real' and hold different work"):
        await stage.backend.purge_dead(["real"])
    spam = letters["spam"]
    assert await stage.backend.purge_dead([IdInBatch.of(spam.id, spam.batch, spam.work)]) == ["real"]
    (left,) = await stage.backend.dead_letters(10)
    assert left.work == work_of(signed("real", "echo real"))


async def test_the_command_line_purges_one_of_two_letters_of_one_id(stage: Stage) -> None:
    origin = await _buried(stage, signed("real", "echo real"))
    await _add(stage, Task.new(id="real", command="echo spam"), origin)
    refused = await stage.run("dead", "purge", "real")
    assert (refused.code, "--where" in refused.err) == (3, True)
    purged = await stage.run("dead", "purge", "--where", "id=real", "--where", "command=echo spam")
    assert purged.code == 0
    (left,) = await stage.backend.dead_letters(10)
    assert left.description == "real"


async def test_a_copy_of_the_highest_number_can_be_put_back(stage: Stage) -> None:
    """The same work, as a stranger may copy it: a number above the highest made a message that nobody reads."""
    task = signed("real", "echo real")
    await _add(stage, task, await _buried(stage, task))
    (letter,) = await stage.backend.dead_letters(10)
    assert await stage.backend.redrive([letter.id]) == ["real"]
    assert (await stage.take()).task.command == "echo real"


async def test_letters_with_payloads_are_one_by_their_work_alone(stage: Stage) -> None:
    await make_container(stage)
    task, other = (signed("real", f"echo {word}{' ' * 70_000}") for word in ("real", "spam"))
    origin = await _buried(stage, task)
    payloads = stage.behind._dead._payloads
    wire = await stage.wire(f"{stage.queue}-failed")
    story = {"id": "real", "origin": origin, "description": "again", "died": 2e9}
    for each in (task, other):
        blob = await payloads.store(each.encode())
        await wire.put(MessageContent(b"", MessageNotes(dead=story, blob=blob, id="real")).text())
    letters = await stage.backend.dead_letters(10)
    assert sorted(str(Task.decode(each.body).command).strip() for each in letters) == ["echo real", "echo spam"]
    assert (await stage.behind.stats()).dead == 3
