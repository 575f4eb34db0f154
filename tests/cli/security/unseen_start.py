"""`python unseen_start.py HOW WORDS...`: `jobq WORDS...` with secrets that no program was started with.

They come by standard input, as JSON, once this process has hidden itself: so who finds them in /proc has them of a
process that jobq has started. HOW:

    command             the command line
    library             a worker of a program that embeds jobq, on the queue WORDS
    restarted           the command line, whose guardian starts the worker again up to three times, without much pause
"""

import asyncio
import ctypes
import json
import os
import sys


def main(how: str, words: list[str]) -> None:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    os.environ.update(json.load(sys.stdin))
    if how == "library":
        asyncio.run(work(*words))
        return
    if how == "restarted":
        from jobq.run.process.environment import start_environment  # noqa: PLC0415 - not before it is hidden
        from jobq.run.spawn.launch import launch  # noqa: PLC0415 - as the command line does it

        again = [sys.executable, "-P", "-m", "jobq", *words]
        shown = start_environment(os.environ, "inherit")
        connection = launch(["--restart", "3", "--first-pause", "0.01", "--", *again], environment=shown)
        os.environ["JOBQ_GUARDIAN_FD"] = str(connection.detach())
    sys.argv = ["jobq", *words]
    from jobq.__main__ import main as command_line  # noqa: PLC0415 - not before it is hidden

    command_line()


async def work(name: str) -> None:
    import jobq  # noqa: PLC0415 - as above

    async with jobq.connect(name) as queue:
        await queue.worker()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
