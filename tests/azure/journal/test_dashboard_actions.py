"""What is done to an Azure queue in its dashboard, by a real browser: service and journal hold it afterwards."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
from playwright.async_api import Page, async_playwright, expect

from jobq.journal.records import Attempt
from jobq.settlement import Complete, MoveToDeadLetters, Record
from jobq.task import OutcomeKind, Task, TaskResult
from jobq_azure.table_journal.backend import JournaledQueue
from tests.azure.journal.journal_stage import journaled, state, written
from tests.azure.stage import LEASE, NOW, Stage
from tests.dashboard import browser

pytestmark = pytest.mark.check

_SECONDS = 20


@dataclass
class _Ui:
    """A browser at `jobq ui` of a queue."""

    page: Page
    url: str
    queue: str

    async def open(self, path: str = "") -> Page:
        await self.page.goto(f"{self.url}/ui/q/{self.queue}{path}")
        return self.page

    async def do(self, button: str, confirmation: str, said: str) -> None:
        """Press a button of the page that is open, confirm, and read what came of it."""
        await self.page.get_by_role("button", name=button, exact=True).click()
        await self.page.get_by_role("button", name=confirmation, exact=True).click()
        await expect(self.page.get_by_role("status")).to_contain_text(said)


@pytest.fixture
async def queue(stage: Stage) -> JournaledQueue:
    return await journaled(stage)


@pytest.fixture
async def ui(stage: Stage, queue: JournaledQueue) -> AsyncIterator[_Ui]:
    """The real command, and who has followed its link."""
    process = await stage.start(stage.spec, "--no-open", "--json", spec="ui", JOBQ_JOURNAL="tables")
    assert process.stdout is not None
    said = json.loads(await process.stdout.readline())
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=browser.find(), args=["--no-sandbox"])
        page = await chromium.new_page(locale="en-US")
        page.set_default_timeout(1000 * _SECONDS)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        await page.goto(said["link"])
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        yield _Ui(page, said["url"].partition("/ui")[0], queue.name)
        await chromium.close()
    assert complaints == []


async def _dead(queue: JournaledQueue, count: int) -> list[str]:
    """Push some tasks, and give up on them; return their ids."""
    await queue.push([Task.new(command=f"train --seed {number}") for number in range(count)])
    ids = []
    for delivery in await queue.receive(count, LEASE, NOW):
        attempt = Attempt(attempt=1, outcome="failed", then="dead", ended=time.time(), exit_code=3, host="node-7")
        text = "failed: exit code 3\nlast output:\nno space left"
        await delivery.settle(MoveToDeadLetters("failures", text, record=Record(attempt)))
        ids.append(delivery.id)
    await written(queue)
    return ids


async def _until(seen: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_SECONDS):
        while not await seen():
            await asyncio.sleep(0.2)


async def test_a_dead_letter_is_put_back(ui: _Ui, queue: JournaledQueue) -> None:
    (id_,) = await _dead(queue, 1)
    await ui.open(f"/t/{id_}")
    await ui.do("Retry...", "Put 1 task back, with fresh budgets", "1 put back")
    await expect(ui.page.locator("main")).to_contain_text("ready")
    (again,) = await queue.receive(1, LEASE, NOW)
    assert again.id == id_
    await again.settle(Complete(TaskResult(outcome=OutcomeKind.SUCCEEDED)))
    assert (await queue.stats()).total == 0


async def test_of_the_dead_letters_the_chosen_ones_are_purged(ui: _Ui, queue: JournaledQueue) -> None:
    first, second = await _dead(queue, 2)
    page = await ui.open("/tasks?state=dead")
    await page.get_by_label(f"Select {first}").check()
    await ui.do("Purge selected...", "Purge 1 task", "1 deleted")
    await expect(page.locator(f"[id='task-{second}']")).to_be_visible()
    await expect(page.locator(f"[id='task-{first}']")).to_have_count(0)
    assert [each.id for each in await queue.dead_letters(10)] == [second]


async def test_what_waits_is_canceled_by_who_receives_it(ui: _Ui, stage: Stage, queue: JournaledQueue) -> None:
    """No message can be taken away from here: the page says that it is to be canceled until a worker finds it so."""
    (id_,) = await queue.push([Task.new(command="touch it-ran")])
    await written(queue)
    page = await ui.open("/tasks?state=ready")
    await page.get_by_label(f"Select {id_}").check()
    await ui.do("Cancel selected...", "Cancel 1 task", "1 canceled")
    await expect(page.locator(f"[id='task-{id_}']")).to_contain_text("to be canceled")
    ended = await stage.run("worker", "--idle-timeout", "1s", JOBQ_JOURNAL="tables")
    assert ended.code == 0, ended.err
    assert await state(queue, id_) == "canceled"
    assert not (stage.folder / "it-ran").exists()
    page = await ui.open(f"/t/{id_}")
    await expect(page.locator("main")).to_contain_text("canceled")


async def test_a_running_task_is_asked_to_end(ui: _Ui, stage: Stage, queue: JournaledQueue) -> None:
    (id_,) = await queue.push([Task.new(command="sleep 100")])
    await written(queue)
    await stage.start("worker", "--idle-timeout", "1h", JOBQ_JOURNAL="tables", JOBQ_VISIBILITY_TIMEOUT="10s")

    async def runs() -> bool:
        return await state(queue, id_) == "running"

    await _until(runs)
    await ui.open(f"/t/{id_}")
    await ui.do("Cancel...", "Cancel 1 task", "1 stop with their next heartbeat")

    async def is_canceled() -> bool:
        return await state(queue, id_) == "canceled"

    await _until(is_canceled)


async def test_a_queue_is_paused_and_resumed(ui: _Ui, queue: JournaledQueue) -> None:
    page = await ui.open()
    await page.get_by_role("button", name="Pause the queue").click()
    await page.get_by_label("Why").fill("GPU driver")
    await page.get_by_role("button", name="Pause the queue").click()
    await expect(page.get_by_role("status")).to_contain_text("the queue is paused")
    await expect(page.locator(".notice")).to_contain_text(re.compile("Paused .*by .*: GPU driver"))
    mark = (await queue.stats()).paused
    assert mark is not None
    assert mark.reason == "GPU driver"
    await ui.do("Resume the queue", "Resume the queue", "tasks are handed out again")
    await expect(page.locator(".notice")).to_have_count(0)
    assert (await queue.stats()).paused is None


async def test_what_was_done_stands_in_the_audit(ui: _Ui, queue: JournaledQueue) -> None:
    (id_,) = await _dead(queue, 1)
    await ui.open(f"/t/{id_}")
    await ui.do("Purge...", "Purge 1 task", "1 deleted")
    page = await ui.open("/audit")
    row = page.locator("tbody tr").first
    await expect(row).to_contain_text("purge")
    await expect(row).to_contain_text(id_)
    await expect(row).to_contain_text("done: 1 deleted")
