"""`jobq run --results DIR`: DIR/NUMBER/stdout, stderr and meta.json for each job, by its number in the input."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jobq.errors import ConfigurationError
from jobq.run.process.log_files import LogFile, Sink

META: Final = "meta.json"
_WRITTEN_SECONDS: Final = 60.0  # how long the end of a job waits for a slow disk


@dataclass(frozen=True)
class _Begun:
    out: LogFile
    err: LogFile

    @property
    def is_written(self) -> bool:
        return self.out.is_written and self.err.is_written

    @property
    def is_whole(self) -> bool:
        return self.out.is_whole and self.err.is_whole

    def write(self, stream: str, chunk: bytes) -> None:
        (self.out if stream == "stdout" else self.err).write(chunk)

    def close(self) -> None:
        self.out.close()
        self.err.close()

    def wait(self) -> None:
        self.close()
        for file in (self.out, self.err):
            file.join(_WRITTEN_SECONDS)


class ResultFolder:
    """The folder of all results of a run. What is there of a job that runs again is replaced.

    Args:
        path: made where it is missing, for this user alone.

    Attributes:
        incomplete: how many jobs' results are not whole, since they could not be written.

    Raises:
        ConfigurationError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.incomplete = 0
        self._path = path
        self._begun: dict[str, _Begun] = {}
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(f"cannot make the folder {path} for --results: {error.strerror}") from None

    def begin(self, id_: str, name: str) -> None:
        """Make room for the results of an attempt: without its meta.json a job has none yet.

        Args:
            id_: of the task.
            name: of its folder.
        """
        folder = self._path / name
        with suppress(OSError):  # none was there; or nothing can be written there, which its files will find
            (folder / META).unlink()
        self._begun[id_] = _Begun(LogFile(folder / "stdout"), LogFile(folder / "stderr"))

    def sink(self, id_: str, _attempt: int) -> Sink:
        """Return what takes the output of the attempt that was begun last."""
        begun = self._begun[id_]
        return Sink(begun.write, begun.close)

    async def written(self, id_: str) -> None:
        """Wait until what the attempt that was begun last has printed is in its files; not for ever."""
        await asyncio.to_thread(self._begun[id_].wait)

    def conclude(self, id_: str, name: str, meta: dict[str, Any]) -> None:
        """Write what became of a job, in one step; to be called before that counts.

        Args:
            id_: of the task.
            name: of its folder.
            meta: what its meta.json holds.
        """
        begun = self._begun.pop(id_, None)
        is_whole = begun is None or begun.is_whole
        self.incomplete += not is_whole
        if begun is not None and not begun.is_written:
            return  # the next write would wait for that disk as well
        folder = self._path / name
        part = folder / f".{META}.part"
        text = json.dumps({**meta, "complete": is_whole}, indent=2, ensure_ascii=False)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
            part.replace(folder / META)
        except OSError:
            self.incomplete += is_whole
