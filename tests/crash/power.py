"""Loss of power, offline: of one recorded run, every state in which a disk may be found that keeps what was synced.

A write that no sync of its file has followed may have landed, or not, or some of its sectors of 512 bytes. An image is
a prefix of the run with all of its writes; with none that were not synced; and with one of these left out or torn,
while the others landed. The log's index (`-shm`) is memory, and gone.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.crash.kills import Point, recorded
from tests.crash.subjects import FILE, Subject, emptied
from tests.crash.tracer import SYNCS, WRITES, Call

SECTOR: Final = 512
Files = dict[str, bytes]
_CHANGES: Final = WRITES | {"ftruncate", "unlink"}


@dataclass
class Disk:
    """What surely is on it, and what was asked of it since, in order."""

    kept: Files = field(default_factory=dict)
    pending: list[Call] = field(default_factory=list)

    def take(self, call: Call) -> None:
        """Take one call."""
        if call.name in SYNCS:
            is_folder = call.path not in {each.path for each in self.pending} and call.path not in self.kept
            ours = [each for each in self.pending if (each.name == "unlink" if is_folder else each.path == call.path)]
            self.kept = _after(self.kept, ours)
            self.pending = [each for each in self.pending if each not in ours]
        elif call.name in _CHANGES:
            self.pending.append(call)
        elif call.name != "told":
            raise AssertionError(f"what a disk makes of {call.name} is not known")

    def images(self) -> Iterator[tuple[str, Files]]:
        """Yield what may be found after a loss of power now."""
        yield "all landed", _after(self.kept, self.pending)
        if self.pending:
            yield "only what was synced", self.kept
        for place, call in enumerate(self.pending):
            before, behind = self.pending[:place], self.pending[place + 1 :]
            yield f"without {_told(call)}", _after(self.kept, [*before, *behind])
            if call.name in WRITES and len(call.data) > SECTOR:
                for torn in _torn(call):
                    yield f"with {len(torn.data)} bytes of {_told(call)}", _after(self.kept, [*before, torn, *behind])


def points(subject: Subject, folder: Path, every: int = 1) -> Iterator[Point]:
    """Yield what comes of each image, or of one in so many; equal ones are one."""
    calls = [call for call in recorded(subject, folder) if not call.path.endswith("-shm")]
    disk = Disk({str(path): path.read_bytes() for path in _prepared(subject, folder)})
    told, seen, count = 0, set[bytes](), 0
    for number, call in enumerate(calls):
        told += call.name == "told"
        disk.take(call)
        for how, files in disk.images():
            digest = _digest(files, told)
            if digest in seen:
                continue
            seen.add(digest)
            count += 1
            if count % every == 0:
                place = f"{subject.name}, power lost after call {number} ({_told(call)}), {how}"
                yield Point(place, _fault(subject, emptied(folder), files, told))
    shutil.rmtree(folder)


def _prepared(subject: Subject, folder: Path) -> list[Path]:
    subject.prepare(emptied(folder))
    return sorted(path for path in folder.iterdir() if path.is_file())


def _fault(subject: Subject, folder: Path, files: Files, told: int) -> str:
    for path, content in files.items():
        Path(path).write_bytes(content)
    return subject.fault(folder / FILE, told, True)


def _after(files: Mapping[str, bytes], calls: Sequence[Call]) -> Files:
    found = dict(files)
    for call in calls:
        content = found.get(call.path, b"")
        if call.name == "unlink":
            found.pop(call.path, None)
        elif call.name == "ftruncate":
            found[call.path] = content[: call.offset].ljust(call.offset, b"\0")
        else:
            end = call.offset + len(call.data)
            found[call.path] = content[: call.offset].ljust(call.offset, b"\0") + call.data + content[end:]
    return found


def _torn(call: Call) -> Iterator[Call]:
    """Yield a write of which the first half of the sectors has landed, or the second, or all but the first sector."""
    half = len(call.data) // SECTOR // 2 * SECTOR
    if half:
        yield call._replace(data=call.data[:half])
        yield call._replace(data=call.data[half:], offset=call.offset + half)
    yield call._replace(data=call.data[SECTOR:], offset=call.offset + SECTOR)


def _digest(files: Files, told: int) -> bytes:
    digest = hashlib.blake2b(str(told).encode(), digest_size=16)
    for path in sorted(files):
        digest.update(f"\0{path}\0{len(files[path])}\0".encode())
        digest.update(files[path])
    return digest.digest()


def _told(call: Call) -> str:
    if call.name == "told":
        return f"told {call.data.decode().strip()!r}"
    return f"{call.name} of {Path(call.path).name} at {call.offset}"
