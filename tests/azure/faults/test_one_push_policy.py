"""A lost answer on a service that takes an id twice: nothing repeats the push, and everything says so (S1, S8)."""

from collections.abc import Awaitable, Callable

import pytest

import jobq
from jobq.errors import JobqError
from jobq.settings import Settings
from tests.azure.stage import Stage
from tests.support.http_proxy import Strike

Ending = tuple[int, bool]  # the exit code, and whether the doubt is named


async def of_library(stage: Stage) -> Ending:
    settings = Settings(connection_string=stage.signed)
    async with jobq.connect(stage.spec, settings=settings) as queue:
        try:
            await queue.push(["echo 1"])
        except JobqError as error:
            return error.exit_code, "in doubt: 1 task (" in "".join(error.__notes__)
    return 0, False


def of_command_line(*arguments: str) -> Callable[[Stage], Awaitable[Ending]]:
    async def pushed(stage: Stage) -> Ending:
        (stage.folder / "lines").write_text("echo 1\n")
        result = await stage.run(*arguments)
        return result.code, "in doubt: 1 task (" in result.err

    return pushed


WAYS = {
    "library": of_library,
    "push -c": of_command_line("push", "-c", "echo 1"),
    "push FILE": of_command_line("push", "lines"),
    "push --resume": of_command_line("push", "--resume", "one", "lines"),
    "fanout": of_command_line("fanout", "one", "--lines", "lines", "--", "echo", "{line}"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("strike", "queued"), [(Strike.LOSE_ANSWER, 1), (Strike.BREAK, 0)])
async def test_a_push_that_may_be_doubled_is_not_repeated(
    stage: Stage, way: Callable[[Stage], Awaitable[Ending]], strike: Strike, queued: int
) -> None:
    stage.proxy.strike(strike, "POST", "/messages")
    assert await way(stage) == (75, True)
    assert len(stage.proxy.seen("POST", "/messages")) == 1, "somebody has repeated it"
    assert await stage.total() == queued
