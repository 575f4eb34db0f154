"""Bytes to lines for people, to whole lines for files, and the tail that is kept: no descriptors, no loop.

LF, CRLF and CR end a line. A line that CR ends is progress: the program means to write over it, so of a burst only the
last one counts.
"""

import codecs
from typing import Final, NamedTuple

MAX_LINE_BYTES: Final = 8 * 1024
MAX_WAITING_LINE_BYTES: Final = 1024 * 1024


class OutputLine(NamedTuple):
    """One line of output, without its end, undecodable bytes replaced; progress = CR ended it."""

    text: str
    progress: bool


class LineSplitter:
    """Cuts a stream of bytes into lines; a line that is too long comes out once, cut, with a note.

    Args:
        max_bytes: the longest line that is kept whole; also bounds the memory.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()  # the line so far: decoded as a whole, so no chunk edge splits a character
        self._dropped = 0
        self._cr = False  # the last byte was a CR, and the next one decides whether it is a CRLF
        self._skip_lf = False  # `settle` has decided that before

    @property
    def undecided(self) -> bool:
        """Whether a line waits for the byte after its CR."""
        return self._cr

    def feed(self, chunk: bytes) -> list[OutputLine]:
        """Return the lines that this chunk completes."""
        if not chunk:
            return []
        if self._skip_lf:
            self._skip_lf = False
            chunk = chunk.removeprefix(b"\n")
        if self._cr:
            self._cr = False
            chunk = b"\r" + chunk
        if chunk.endswith(b"\r"):
            self._cr = True
            chunk = chunk[:-1]
        if b"\n" not in chunk and b"\r" not in chunk:  # the hot path of a gigabyte without a line end
            self._add(chunk)
            return []
        return self._cut(chunk)

    def settle(self) -> list[OutputLine]:
        """Return the line that waits for the byte after its CR; should an LF follow after all, it ends nothing."""
        if not self._cr:
            return []
        self._cr, self._skip_lf = False, True
        return [self._take(progress=True)]

    def finish(self) -> list[OutputLine]:
        """Return what is left at the end of the stream."""
        if self._cr:
            return self.settle()
        return [self._take(progress=False)] if self._line else []

    def _cut(self, chunk: bytes) -> list[OutputLine]:
        lines = []
        pieces = chunk.split(b"\n")
        unended = len(pieces) - 1
        for index, piece in enumerate(pieces):
            text = piece if index == unended else piece.removesuffix(b"\r")
            *overwritten, last = text.split(b"\r")
            for part in overwritten:
                self._add(part)
                lines.append(self._take(progress=True))
            self._add(last)
            if index != unended:
                lines.append(self._take(progress=False))
        return lines

    def _add(self, piece: bytes) -> None:
        room = self._max_bytes - len(self._line)
        self._line += piece[:room]
        self._dropped += max(0, len(piece) - room)

    def _take(self, *, progress: bool) -> OutputLine:
        if not self._dropped:
            text = self._line.decode(errors="replace")
        else:
            text, used = codecs.utf_8_decode(self._line, "replace", False)  # False: leave half a character
            text += f" [{len(self._line) - used + self._dropped} bytes dropped]"
            self._dropped = 0
        self._line.clear()
        return OutputLine(text, progress)


class WholeLines:
    """Passes bytes on unchanged, up to the last line end that has come, so that lines of two tasks do not mix.

    Args:
        max_bytes: how much of one line waits for its end; a longer line is passed on in pieces.
    """

    def __init__(self, max_bytes: int = MAX_WAITING_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._waiting = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """Return what may be passed on now, in order; may be empty."""
        end = len(chunk) if len(self._waiting) + len(chunk) > self._max_bytes else chunk.rfind(b"\n") + 1
        if not end:
            self._waiting += chunk
            return b""
        whole = bytes(self._waiting) + chunk[:end]
        self._waiting[:] = chunk[end:]
        return whole

    def finish(self) -> bytes:
        """Return what is left at the end of the stream."""
        rest = bytes(self._waiting)
        self._waiting.clear()
        return rest


class Tail:
    """Keeps the last bytes of a stream.

    Args:
        max_bytes: how many; twice as much memory is used.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()

    def add(self, chunk: bytes) -> None:
        """Append a chunk."""
        self._kept += chunk
        if len(self._kept) > 2 * self._max_bytes + 4:  # twice: so that trimming costs little per byte
            del self._kept[: -(self._max_bytes + 4)]  # 4: `text` sees whether its first character is whole

    def bytes(self) -> bytes:
        """Return what is kept."""
        return bytes(self._kept[max(0, len(self._kept) - self._max_bytes) :])

    def text(self, max_bytes: int | None = None) -> str:
        """Return the end as text that takes at most `max_bytes` in UTF-8, cut between characters."""
        limit = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
        start = max(0, len(self._kept) - limit)
        whole = start
        while 0 < whole < min(start + 3, len(self._kept)) and self._kept[whole] & 0xC0 == 0x80:  # noqa: PLR2004 - UTF-8
            whole += 1
        encoded = self._kept[whole:].decode(errors="replace").encode()
        return encoded[max(0, len(encoded) - limit) :].decode(errors="ignore")  # a replaced byte has become three
