"""What one attempt saves and finds: a value, and the files of its checkpoint folder (S9).

Files are packed into an archive, put into the store under a name of its own that begins with the fencing number, and
become the task's checkpoint by the same fenced write to the queue that saves a value (S4): so a kill at any point
leaves the last whole archive in force, and a stale attempt changes nothing. Older archives are removed after that.
"""

import asyncio
import hashlib
import logging
import secrets
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from jobq.backend import Backend, Delivery
from jobq.errors import BackendUnavailable, ConfigurationError, JobqError, LockLost
from jobq.fencing import FencingNumber
from jobq.files.archive import ArchiveRefused, ArchiveTooLarge, pack, unpack
from jobq.files.file_store import FileStore, place_at
from jobq.files.remove_tree import remove_beside, remove_tree
from jobq.files.threads import in_thread
from jobq.formats.checkpoint_format import StoredCheckpoint
from jobq.lease.keeper import LeaseKeeper
from jobq.run.process.spawner import Awaited, OtherKind, StartFailed
from jobq.settings import Settings

_log: Final = logging.getLogger(__name__)
SAVE_SECONDS: Final = 600.0  # one save or restore; after that the store counts as not answering
_TIDY_SECONDS: Final = 10.0  # what is left behind costs space, and no correctness
_ENDING: Final = ".tar"


class Archives:
    """The checkpoint store of one worker.

    Args:
        place: entered.
        queue: whose tasks' files they are.
        most_bytes: of one checkpoint.
    """

    def __init__(self, place: FileStore, queue: str, most_bytes: int) -> None:
        self.place = place
        self.queue = queue
        self.most_bytes = most_bytes


@asynccontextmanager
async def archives_of(backend: Backend, settings: Settings) -> AsyncIterator[Archives | None]:
    """Enter the checkpoint store that the settings name, if they do.

    Raises:
        ConfigurationError, BackendUnavailable: it cannot be used, or this queue keeps no checkpoints.
    """
    if settings.checkpoint_store is None:
        yield None
        return
    if not backend.capabilities.native_checkpoint:
        raise ConfigurationError(
            f"the service of queue {backend.name!r} keeps no checkpoints, so nothing says which files are a task's:"
            " leave out --checkpoint-store (JOBQ_CHECKPOINT_STORE)"
        )
    if not hasattr(tarfile, "data_filter"):
        raise ConfigurationError("--checkpoint-store needs Python 3.11.4 or newer, which reads archives safely")
    async with place_at(settings.checkpoint_store, settings) as place:
        yield Archives(place, backend.name, settings.checkpoint_max)


class AttemptCheckpoints:
    """One attempt's.

    Args:
        delivery: whose.
        keeper: saves, fenced, in order with renewals.
        archives: where files are kept; None = this worker has no such place.
        make_folder: returns a path for a new folder of this worker.
    """

    def __init__(
        self,
        delivery: Delivery,
        keeper: LeaseKeeper,
        archives: Archives | None,
        make_folder: Callable[[], Path],
    ) -> None:
        self._keeper = keeper
        self._archives = archives
        self._make_folder = make_folder
        self._saved = StoredCheckpoint.decode(delivery.checkpoint_value)
        self._fencing = delivery.fencing
        self._task_id = delivery.id
        # Of two tasks of one id, as a Storage Queue may hold them, neither removes the other's (S9). Another program
        # may not say when one was created; the epochs differ.
        life = repr((delivery.task.created, delivery.fencing.epoch))
        self._life = hashlib.blake2b(life.encode(), digest_size=6).hexdigest()
        self._count = 0
        self._saving = asyncio.Lock()
        self._journaled = delivery.journaled
        self.folder: Path | None = None
        self.progress: tuple[float | None, str] = None, ""

    @property
    def value(self) -> str | None:
        """What the task saved as text."""
        return self._saved.value

    def show_progress(self, share: float | None, text: str) -> None:
        """Take in how far the task has come, a share from 0 to 1; where there is a journal the next renewal, soon."""
        self.progress = share, text
        if self._journaled:
            self._keeper.nudge()

    async def restore(self) -> None:
        """Make the folder, with the files that were saved last.

        Raises:
            StartFailed: they cannot be had, and without them the task would begin anew (S9). Where it is only this
                worker that cannot have them, OtherKind; where they may be had later, Awaited.
        """
        name = self._saved.archive
        if self._archives is None:
            if name is not None:
                raise OtherKind(
                    "its checkpoint has files, and this worker was given no --checkpoint-store to find them in"
                )
            return
        try:
            self.folder = self._make_folder()
            if name is not None:
                async with asyncio.timeout(SAVE_SECONDS):
                    await self._restore(self._archives, name, self.folder)
        except StartFailed:
            raise
        except ArchiveTooLarge as error:
            raise OtherKind(str(error)) from error
        except (BackendUnavailable, TimeoutError, OSError) as error:
            cause = getattr(error, "strerror", None) or str(error) or "no answer"
            raise Awaited(f"the files of its checkpoint cannot be had now: {cause}") from error
        except JobqError as error:
            raise StartFailed(str(error)) from error

    async def _restore(self, archives: Archives, name: str, folder: Path) -> None:
        if not name.startswith(f"{archives.queue}/{self._task_id}/") or ".." in name.split("/"):
            raise ArchiveRefused("the checkpoint names files that are another task's")
        fetched = self._make_folder() / "archive"
        try:
            try:
                source = await archives.place.fetch(name, fetched)
            except FileNotFoundError:
                if not fetched.parent.is_dir():
                    raise  # our own folder
                raise StartFailed(f"the files of its checkpoint are gone from the store: {name}") from None
            digest = name.removesuffix(_ENDING).rpartition("-")[2]
            await in_thread(lambda: unpack(source, folder, archives.most_bytes, digest), "checkpoint")
        finally:
            remove_tree(fetched.parent)

    async def checkpoint(self, value: str) -> None:
        """Save a value, and leave the files as they were; raises as `LeaseKeeper.checkpoint` does."""
        async with self._saving:
            await self._keep(StoredCheckpoint(value, self._saved.archive))

    async def checkpoint_folder(self) -> None:
        """Save what lies in the folder, and leave the value as it was.

        Raises:
            ConfigurationError: there is no folder, or it holds too much, or what cannot be kept; nothing was saved.
            BackendUnavailable: the store did not take it; what was saved before counts.
            LockLost, SettlementUnknown: as for a value.
        """
        if self._archives is None or self.folder is None:
            raise ConfigurationError("this worker has no place for files: start it with --checkpoint-store")
        async with self._saving:
            try:
                async with asyncio.timeout(SAVE_SECONDS):
                    name = await self._put(self._archives, self.folder)
            except TimeoutError:
                raise BackendUnavailable(f"the checkpoint store took longer than {SAVE_SECONDS:.0f} s") from None
            except OSError as error:
                raise BackendUnavailable(f"the files were not saved: {error.strerror or error}") from None
            former = self._saved.archive
            try:
                await self._keep(StoredCheckpoint(self._saved.value, name))
            except LockLost:
                with suppress(JobqError, OSError):  # surely not the task's checkpoint; what stays costs space only
                    await self._archives.place.remove(name)
                raise
            await self._tidy(self._archives, name, former)

    def is_empty(self) -> bool:
        """Return whether there is nothing to save: no folder, one that the task never used, or has done away with."""
        try:
            return self.folder is None or not (any(self.folder.iterdir()) or self._saved.archive is not None)
        except OSError:
            return True

    async def _put(self, archives: Archives, folder: Path) -> str:
        scratch, own = await archives.place.scratch(), None
        if scratch is None:
            scratch = own = self._make_folder()
        packed = scratch / secrets.token_hex(8)
        try:
            digest = await in_thread(lambda: pack(folder, packed, archives.most_bytes), "checkpoint")
            self._count += 1
            made = f"{self._life}-{self._fencing}-{self._count:06d}-{digest}{_ENDING}"
            name = f"{archives.queue}/{self._task_id}/{made}"
            await archives.place.put(name, packed)
            return name
        finally:
            with suppress(OSError):
                packed.unlink(missing_ok=True)
            if own is not None:
                remove_tree(own)

    async def _keep(self, saved: StoredCheckpoint) -> None:
        await self._keeper.checkpoint(saved.encode())
        self._saved = saved

    async def forget(self) -> None:
        """Remove the files of a task that has ended for good; what cannot be removed stays, and is logged."""
        if self._archives is not None and self._saved.archive is not None:
            await self._tidy(self._archives, None, self._saved.archive)

    async def _tidy(self, archives: Archives, kept: str | None, former: str | None) -> None:
        """Remove the archives of this attempt and earlier ones but one; a later attempt's are not ours (S4).

        Args:
            archives: where they are.
            kept: which one stays.
            former: the task's until now, also where it was named before a redrive.
        """
        last = (self._fencing, self._count)
        try:
            async with asyncio.timeout(_TIDY_SECONDS):
                for name in await archives.place.names(f"{archives.queue}/{self._task_id}/"):
                    made = (self._fencing, 0) if name == former else _made(name, self._life)
                    if name != kept and made is not None and made <= last:
                        await archives.place.remove(name)
        except (JobqError, OSError, TimeoutError) as error:
            cause = str(error) or "no answer"
            _log.warning("an old checkpoint of task %s is left in the store: %s", self._task_id, cause)

    def close(self) -> None:
        """Remove the folder."""
        if self.folder is not None:
            remove_beside(self.folder)


def _made(name: str, life: str) -> tuple[FencingNumber, int] | None:
    """Return which attempt of a task made an archive, and as its how many-th; None for what is none of its."""
    whose, _, rest = name.rpartition("/")[2].partition("-")
    fencing, _, rest = rest.partition("-")
    try:
        epoch, generation, delivery = map(int, fencing.split("."))
        number = int(rest.partition("-")[0])
    except ValueError:
        return None
    return (FencingNumber(epoch, generation, delivery), number) if whose == life else None
