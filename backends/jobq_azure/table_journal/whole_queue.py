"""Forgetting a queue that is deleted: all that a table holds of it, its batches too."""

from contextlib import suppress
from typing import Final

from jobq.errors import ConfigurationError
from jobq_azure.table_journal.client import MOST_ROWS, TableWire, Verb, Write
from jobq_azure.table_journal.errors import TableMissing, WriteRefused
from jobq_azure.table_journal.lookup import answered, for_each

_FIRST: Final = "!"  # before all keys, and `~` behind them
_BEHIND: Final = "~"


async def forget_queue(wire: TableWire) -> None:
    """Delete all rows of a queue; a transaction for each hundred. Repeating it is safe.

    Args:
        wire: to the table, for that queue.

    Raises:
        BackendUnavailable: some may be left.
        ConfigurationError: the table takes no such deletion.
    """

    async def delete(some: tuple[str, list[str]]) -> None:
        partition, keys = some
        try:
            await answered(wire.write(partition, [Write(Verb.DELETE, key, {}) for key in keys]))
        except WriteRefused as refused:
            if not refused.is_conflict:
                raise ConfigurationError(str(refused)) from None
            # Some of them are gone meanwhile: the next look shows which are not.

    queue = wire.place.queue
    with suppress(TableMissing):
        # From the queue's own partition to behind the last whose name goes on with `!`: none of another queue.
        after = None
        while True:
            look = wire.look(queue, _FIRST, _BEHIND, select="RowKey", after=after, behind=f'{queue}"')
            found, after = await answered(look)
            keys: dict[str, list[str]] = {}
            for row in found:
                keys.setdefault(str(row["PartitionKey"]), []).append(str(row["RowKey"]))
            await for_each(
                [
                    (partition, each[start : start + MOST_ROWS])
                    for partition, each in keys.items()
                    for start in range(0, len(each), MOST_ROWS)
                ],
                delete,
            )
            if found:
                after = None  # from the beginning: nothing that was refused is passed over
            elif after is None:
                return
