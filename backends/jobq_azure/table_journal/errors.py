"""What the answers of the table service mean in jobq's errors."""

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from jobq.errors import BackendUnavailable, ConfigurationError
from jobq_azure.common.errors import NoAnswer, access_denied

if TYPE_CHECKING:
    from jobq_azure.table_journal.location import TablePlace

_INDEX: Final = re.compile(rb'"value": *"(\d+):')
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_NEEDS: Final = (
    "Who pushes, runs or cancels with a journal needs the role 'Storage Table Data Contributor', who only reads it"
    " 'Storage Table Data Reader'; a new role takes some minutes. Or set JOBQ_JOURNAL=off"
)


class TableMissing(ConfigurationError):
    """There is no table yet; `create` makes it."""


class WriteRefused(Exception):
    """One write of a transaction was refused, and so none was made.

    Args:
        message: what the service says.
        index: which one; None = the service does not say.
        code: the service's word.
    """

    def __init__(self, message: str, index: int | None, code: str) -> None:
        super().__init__(message)
        self.index = index
        self.code = code

    @property
    def is_conflict(self) -> bool:
        """Whether the row is there that was to be inserted, gone that was to be deleted, or another by now."""
        return self.code in {"EntityAlreadyExists", "ResourceNotFound", "UpdateConditionNotSatisfied"}


def refusal(status: int, code: str, place: "TablePlace", body: bytes = b"") -> Exception:
    """Return what a status that is no success means.

    Args:
        status: of HTTP.
        code: the service's word.
        place: of the table.
        body: the answer to a transaction; empty = it was none.
    """
    if code == "TableNotFound" or (status == HTTPStatus.NOT_FOUND and not body):
        return TableMissing(
            f"{place}: there is no such table for the journal (JOBQ_JOURNAL); make it with: jobq {place.spec} create"
        )
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return access_denied(code, place, _NEEDS)
    if status in _BUSY or code in {"ServerBusy", "TableBeingDeleted"}:
        return BackendUnavailable(f"{place} is busy ({status} {code})".replace(" )", ")"))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return NoAnswer(f"{place}: the service failed ({status} {code})".replace(" )", ")"))
    message = f"{place}: the service refused the request ({status} {code})".replace(" )", ")")
    if not body:
        return ConfigurationError(message)
    found = _INDEX.search(body)
    return WriteRefused(message, int(found[1]) if found else None, code)
