"""Which tasks of a queue are meant, and by what a store can pass over most others before it reads them."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from jobq.formats.lazy_dataclass import dataclass
from jobq.journal.records import TaskState
from jobq.journal.task_rows import TaskRow

# Written alike in every JSON: no escape has another form for them, and no quotation of words parts them.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:=+,@%-]+")
_WILD: Final = re.compile(r"\[!?\]?[^\]]*\]|[*?\[]")  # as fnmatch reads sets: a ] that comes first is of the set
_FOLDS: Final = ("n", "id", "path")  # in the last words of a dead letter, for what varies
_ENDED: Final = frozenset({TaskState.SUCCEEDED, TaskState.CANCELED})


@dataclass(frozen=True, kw_only=True)
class TaskFilter:
    """Conditions, all of which must hold; those that say nothing hold always.

    A pattern is one of `--where`: * stands for anything, ? for one character, [ab] for one of them.

    Attributes:
        states: in one of which it is; none = any.
        text: pattern of what runs; of a task that ended otherwise than dead, which has lost its command, of its program
            alone. One whose body has more than `task_rows.MOST_BODY_BYTES` has none.
        exit: pattern of how its last attempt ended: an exit code, or `signal 9`; none of one that runs.
        host: pattern of where it runs, or its last attempt did.
        reason, error: patterns of why it is dead, as `jobq.journal.error_grouping` folds it.
        id_part: stands in its id.
        batch: the name of its batch.
        min_age_seconds: it is so for so long (`TaskRow.at`); one that waits for its time is not.
        max_age_seconds: and not for longer.
    """

    states: frozenset[TaskState] = frozenset()
    text: str = ""
    exit: str = ""
    host: str = ""
    reason: str = ""
    error: str = ""
    id_part: str = ""
    batch: str = ""
    min_age_seconds: float | None = None
    max_age_seconds: float | None = None

    @property
    def is_search(self) -> bool:
        """Whether tasks have to be looked at one by one, for want of an index; what is bounded then."""
        return bool(
            self.text
            or self.exit
            or self.host
            or self.reason
            or self.error
            or self.id_part
            or self.batch
            or self.min_age_seconds is not None
            or self.max_age_seconds is not None
            or (self.states & _ENDED and not self.states >= _ENDED)
        )

    @property
    def asks_body(self) -> bool:
        """Whether the body of a task is asked for: what it runs, or when it was made, where its age is not known."""
        return bool(self.text) or self.min_age_seconds is not None or self.max_age_seconds is not None

    def asks_last(self, *, is_dead: bool) -> bool:
        """Return whether the last attempt of a task is asked for: of a dead letter for its host alone."""
        return bool(self.host or (not is_dead and (self.exit or self.text)))

    @property
    def has_states_alone(self) -> bool:
        """Whether nothing else is asked for."""
        return self == TaskFilter(states=self.states)

    def takes(self, row: TaskRow, now: float) -> bool:
        """Return whether all conditions hold.

        Args:
            row: the task.
            now: wall time in seconds since the epoch.
        """
        if (self.states and row.state not in self.states) or self.id_part not in row.id:
            return False
        if self.batch not in ("", row.batch):
            return False
        for pattern, value in (
            (self.text, row.program if row.state in _ENDED else row.runs),
            (self.exit, row.exit),
            (self.host, row.host),
            (self.reason, row.reason),
            (self.error, row.error),
        ):
            if pattern and not fnmatchcase(value, pattern):
                return False
        return self._has_age(row, now)

    def _has_age(self, row: TaskRow, now: float) -> bool:
        if self.min_age_seconds is None and self.max_age_seconds is None:
            return True
        age = None if row.at is None else now - row.at
        if age is None or age < 0:
            return False
        return (self.min_age_seconds or 0.0) <= age and (self.max_age_seconds is None or age <= self.max_age_seconds)


@dataclass(frozen=True, kw_only=True)
class Needles:
    """Texts without which what is stored of a task cannot be of one that is meant; "" = any can.

    Attributes:
        id: in its id.
        body: in its body.
        holder: in who runs it.
        descriptions: in the description of a dead letter.
        records: in the record of its last attempt, where it has one.
    """

    id: str = ""
    body: str = ""
    holder: str = ""
    descriptions: tuple[str, ...] = ()
    records: tuple[str, ...] = ()

    @classmethod
    def of(cls, wanted: TaskFilter, *, is_leased: bool, is_dead: bool, is_ended: bool) -> "Needles":
        """Return what to look for among tasks that are leased, dead, or have ended otherwise."""
        host, text, exit_number = _literal(wanted.host), _literal(wanted.text), ""
        kind, _, number = wanted.exit.rpartition(" ")
        if number.isascii() and number.isdigit() and kind in ("", "signal"):
            exit_number = number
        # As `Attempt.encode` writes it, and as a description says it.
        in_record = f'"{"signal" if kind else "exit_code"}": {number}' if exit_number else ""
        in_words = f"{kind or 'exit code'} {number}" if exit_number else ""
        records = () if is_leased else (host, *([text] if is_ended else []), *([] if is_dead else [in_record]))
        return cls(
            id=max(_PLAIN.findall(wanted.id_part), key=len, default=""),
            body="" if is_ended else text,
            holder=host if is_leased else "",
            descriptions=tuple(filter(None, (in_words, _literal(wanted.error, _FOLDS)))) if is_dead else (),
            records=tuple(filter(None, records)),
        )


def _literal(pattern: str, standing_in: Sequence[str] = ()) -> str:
    """Return the longest text that stands as it is in all that a pattern takes, and in JSON of it.

    Args:
        pattern: of the condition.
        standing_in: words that what it takes has in the place of others.
    """
    found = [part for piece in _WILD.split(pattern) for part in _PLAIN.findall(piece)]
    return max((part for part in found if not any(part in word for word in standing_in)), key=len, default="")
