"""The queue of one `jobq run`: a temporary file that nobody finds afterwards, or a named one that may be resumed."""

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import click

from jobq import own_files
from jobq.backend import Backend
from jobq.errors import ConfigurationError, JobqError, QueueNotFound
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import Task

_QUEUE: Final = "run"
_INPUT: Final = "run-input"  # a second queue of the file: holds one task as long as the input is not wholly queued
_MARK: Final = Task(id="input-is-being-read", kwargs={})


class InputMissing(JobqError):
    """An interrupted run cannot go on without its input."""

    exit_code = 2


@runtime_checkable
class _Private(Protocol):
    def has_one_user(self) -> None: ...

    async def go_nameless(self) -> None: ...

    def keep_ids(self) -> None: ...


@asynccontextmanager
async def temporary_queue(settings: Settings) -> AsyncIterator[Backend]:
    """Enter a new queue in a private temporary folder.

    On Linux the folder goes as soon as the files in it are open, so that not even a SIGKILL leaves it behind.
    """
    settings = settings.copied({"journal": "off"})  # nobody can read it once this has ended
    try:
        folder = Path(tempfile.mkdtemp(prefix="jobq-run-"))  # mode 0700: commands may hold secrets
    except OSError as error:
        raise ConfigurationError(
            f"no temporary folder can be made for this run: {error.strerror}; set TMPDIR to one that can be written"
        ) from None
    removed = False
    try:
        async with resolve(f"sqlite://{folder}/queue.db/{_QUEUE}", settings) as backend:
            assert isinstance(backend, _Private)
            backend.has_one_user()
            await backend.create()
            if sys.platform == "linux":
                await backend.go_nameless()
                removed = _removed(folder)
            yield backend
    finally:
        if not removed:
            shutil.rmtree(folder, ignore_errors=True)


def _removed(folder: Path) -> bool:
    try:
        shutil.rmtree(folder)
    except OSError:  # NFS keeps what is open: then it goes at the end
        return False
    return True


class NamedRun:
    """A queue in a file that stays.

    Args:
        path: the file.
        settings: for connecting.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        self._settings = settings
        self._again = ""
        self._was_unread = False

    def refuse_own_file(self, path: Path, what: str) -> None:
        """Raise ConfigurationError for a path that is the file's own; see `own_files`."""
        own_files.refuse_own_file(resolve(self._spec(_QUEUE), self._settings), path, what)

    @asynccontextmanager
    async def opened(
        self,
        *,
        resume: bool,
        reads_input: bool,
        may_begin: Callable[[], Awaitable[bool]],
        on_resume: Callable[[Backend], Awaitable[None]],
        again: str,
    ) -> AsyncIterator[Backend]:
        """Enter the queue, and mark it as one whose input is being read when that is so.

        Args:
            resume: go on with what the file holds.
            reads_input: whether there is an input to be queued.
            may_begin: asked when the file holds no run: whether that is no mistake.
            on_resume: called when it holds one, before anything of it is changed.
            again: the command line that resumes, for messages.

        Raises:
            UsageError, InputMissing: it cannot be begun or resumed like that.
            QueueNotFound: there is nothing to resume.
        """
        async with resolve(self._spec(_QUEUE), self._settings) as backend:
            try:
                stats = await backend.stats()
            except QueueNotFound:
                if not await may_begin():
                    what = "holds no run" if self._path.exists() else "does not exist"
                    raise QueueNotFound(f"nothing to resume: {self._path} {what}") from None
            else:
                if not resume:
                    left = stats.unfinished
                    held = f"{left} unfinished tasks of an earlier run" if left else "an earlier run, which is finished"
                    raise click.UsageError(
                        f"{self._path} holds {held}; go on with: {again} (what is done is not done again), or name"
                        " another file, or remove this one to run all again"
                    )
                await on_resume(backend)
            self._again = again
            await self._mark(reads_input=reads_input)
            assert isinstance(backend, _Private)
            backend.keep_ids()  # however late it is resumed
            await backend.create()
            yield backend

    async def input_is_queued(self, size: int) -> None:
        """Note that nothing of the input is missing.

        Args:
            size: of the input, in bytes; an empty one, such as /dev/null from cron, is not the one that was cut off.

        Raises:
            InputMissing: an earlier run had not read all of its input, and it was not given again.
        """
        if self._was_unread and not size:
            raise self._input_missing()
        async with resolve(self._spec(_INPUT), self._settings) as marks:
            await marks.clear()

    async def _mark(self, *, reads_input: bool) -> None:
        async with resolve(self._spec(_INPUT), self._settings) as marks:
            await marks.create()
            self._was_unread = bool(await marks.peek(1))
            if reads_input:
                await marks.push([_MARK])
            elif self._was_unread:
                raise self._input_missing()

    def _input_missing(self) -> InputMissing:
        return InputMissing(
            f"the run in {self._path} ended before it had read all of its input; give it again: {self._again} FILE, or"
            " the same --grid, --each and command in its place"
        )

    def _spec(self, queue: str) -> str:
        return f"sqlite://{self._path.absolute()}/{queue}"
