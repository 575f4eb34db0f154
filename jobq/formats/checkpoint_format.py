"""What a queue keeps as a task's checkpoint: the value that the task gave, and beside it the archive of its files.

Both stand in one text, so one fenced write changes both (S4, S9). A value alone is stored as it is.
"""

from typing import Final

from jobq.formats.lazy_dataclass import dataclass

MARK: Final = "\x1djobq files "  # begins no value: `checked_checkpoint` refuses the first character there


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint.

    Attributes:
        value: what the task saved as text; None = nothing.
        archive: the name of its files in the checkpoint store; None = none were saved.
    """

    value: str | None = None
    archive: str | None = None

    @classmethod
    def decode(cls, stored: str | None) -> "StoredCheckpoint":
        """Return what was stored."""
        if stored is None or not stored.startswith(MARK):
            return cls(stored)
        archive, newline, value = stored.removeprefix(MARK).partition("\n")
        return cls(value if newline else None, archive)

    def encode(self) -> str:
        """Return it as it is stored."""
        if self.archive is None:
            return self.value or ""
        return f"{MARK}{self.archive}" + ("" if self.value is None else f"\n{self.value}")
