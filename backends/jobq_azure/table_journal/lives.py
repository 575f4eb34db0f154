"""Which rows are of one life of a task, and which life is meant.

A queue that drops repetitions (S8) says nothing of it, so that the push of one leaves a row of a life that nobody ever
receives. It is taken for the task that the queue has: another of the id, made within the queue's window. Tasks of
batches are known by their ledger, and none of them is dropped.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable

from jobq_azure.table_journal.client import Row
from jobq_azure.table_journal.entities import birth_in, fencing_in, was_received


def life_meant(births: Iterable[int], birth: int | None, apart: int) -> int | None:
    """Return which of some lives of an id is meant; None = none of them.

    Args:
        births: of those that are known.
        birth: of the life that is asked for; None = the newest.
        apart: in microseconds; of two that are nearer the later one may be a repetition.
    """
    known = set(births)
    wanted = max(known, default=0) if birth is None else birth
    return min(
        (each for each in known if abs(each - wanted) <= apart), key=lambda each: abs(each - wanted), default=None
    )


def row_meant(found: Iterable[Row], birth: int | None, apart: int) -> Row | None:
    """Return of the rows of one id that of the life which is meant; as of `life_meant`."""
    last = {birth_in(row): row for row in last_of_each(found, apart)}
    life = life_meant(last, birth, apart)
    return None if life is None else last[life]


def last_of_each(found: Iterable[Row], apart: int) -> list[Row]:
    """Return of the rows of one id the last word of each life, without repetitions."""
    last: dict[int, Row] = {}
    for row in found:
        birth = birth_in(row)
        if birth not in last or fencing_in(last[birth]["Fencing"]) < fencing_in(row["Fencing"]):
            last[birth] = row
    of_none = {birth: row for birth, row in last.items() if not row.get("Batch")}
    received = sorted(birth for birth, row in of_none.items() if was_received(row))
    first = -math.inf  # of those that wait the one that the queue has taken
    for birth in sorted(of_none.keys() - set(received)):
        nearest = bisect_left(received, birth - apart)
        if birth - first <= apart or any(each <= birth + apart for each in received[nearest : nearest + 1]):
            del last[birth]
        else:
            first = birth
    return list(last.values())
