"""What concerns many rows, in short transactions: others claim, renew and settle between two of them.

SQLite has one write lock for the whole file, so that one that holds it for long costs others their leases.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")
ROWS_AT_ONCE: Final = 400  # what is noted of each (batches, counts) costs up to 330 of SQLite's instructions
SECONDS_AT_ONCE: Final = 0.03  # of one transaction, all its operations together


def some(items: Iterable[T], do: Callable[[T], R], until: float) -> list[R]:
    """Do it for as many items as there is time for, for one at least; return what came of these.

    Args:
        items: may be more than are wanted.
        do: changes one row, or a few.
        until: `Now.bulk_until` of the transaction.
    """
    done: list[R] = []
    for item in items:
        done.append(do(item))
        if time.monotonic() >= until:
            break
    return done
