"""Dead letters of tasks that a ledger keeps: it is told before they are put back, or deleted."""

import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jobq.batch_ids import IdInBatch
from jobq.errors import JobqError
from jobq_azure.common.letter_ledger import Buried, LetterLedger, OtherWork, ledger_in, not_kept
from jobq_azure.common.letter_work import work_in
from jobq_azure.service_bus.letter_walk import Group
from jobq_azure.service_bus.message_format import NUMBER, ROOT, id_in, step_in, task_in

if TYPE_CHECKING:
    from jobq_azure.service_bus.seen import Seen

_log: Final = logging.getLogger(__name__)
KEPT_AT_ONCE: Final = 20  # their ledger is asked of each while their locks last
Refused = tuple[Group, JobqError]


class KeptLetters:
    """Of one queue.

    Attributes:
        ledger: keeps the tasks of batches; None = nothing of those is put back or deleted.
    """

    def __init__(self) -> None:
        self.ledger: LetterLedger | None = None

    async def told_of_redrive(self, groups: list[Group], refused: list[Refused]) -> tuple[list[Group], list[Group]]:
        """Tell the ledger what is being put back; return what is to be sent, and what is left over, by its word."""
        to_send, left_over = list[Group](), list[Group]()
        for group in groups:
            book, id_ = ledger_in(group[0].body), id_in(group[0])
            try:
                epoch = _epoch_of_redriven(group[0]) if book else 0
                if not book or await self._ledger(id_).redriving(book, id_, epoch, *_whose(group[0])):
                    to_send.append(group)
                else:
                    left_over.append(group)
            except JobqError as error:
                refused.append((group, error))
        return to_send, left_over

    @staticmethod
    def strangers(ids: Sequence[str], refused: list[Refused]) -> list[Group]:
        """Take out those that only name a task of a batch: an id that names the batch does not mean them."""
        plain = {str(each) for each in ids if not isinstance(each, IdInBatch)}
        found = [each for each in refused if isinstance(each[1], OtherWork) and id_in(each[0][0]) not in plain]
        for each in found:
            refused.remove(each)
            _log.warning("%s", each[1])
        return [group for group, _ in found]

    async def tell_of_sent(self, groups: Sequence[Group]) -> None:
        """Tell the ledger what was sent."""
        for newest, *_ in groups:
            if book := ledger_in(newest.body):
                with contextlib.suppress(JobqError):  # whoever claims it notes as much
                    id_ = id_in(newest)
                    await self._ledger(id_).redriven(book, id_, _epoch_of_redriven(newest))

    async def told_of_purge(self, groups: Sequence[Group], refused: list[Refused]) -> list[Group]:
        """Tell the ledger what is being deleted; return what is to be."""
        told = list[Group]()
        for group in groups:
            id_ = id_in(group[0])
            try:
                await self._ledger(id_).purging(ledger_in(group[0].body), id_, *_whose(group[0]))
            except JobqError as error:
                refused.append((group, error))
            else:
                told.append(group)
        return told

    def _ledger(self, task_id: str) -> LetterLedger:
        if self.ledger is None:
            raise not_kept(task_id)
        return self.ledger


def by_keeper(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Return those of no ledger, and those that one keeps."""
    found: tuple[list[Group], list[Group]] = [], []
    for group in groups:
        found[bool(ledger_in(group[0].body))].append(group)
    return found


def _epoch_of_redriven(seen: "Seen") -> int:
    return task_in(seen).epoch + 1


def _whose(seen: "Seen") -> tuple[str, Buried]:
    """Return what a letter holds, and the message that it was."""
    return work_in(seen.body), Buried(step_in(seen.body), seen.text(NUMBER), seen.text(ROOT).split())
