"""Where a journal in an Azure Table is, and what signs in there: from the settings and the queue's spec."""

import os
import re
from dataclasses import dataclass
from typing import Final

from jobq.errors import ConfigurationError
from jobq.settings import Settings
from jobq.spec import QueueSpec
from jobq_azure.common.storage_signing import StorageService
from jobq_azure.storage.account import AZURITE, connection_string_of, parts_of

TABLE: Final = "jobqjournal"
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_SCHEME: Final = "tables://"


@dataclass(frozen=True, kw_only=True)
class TablePlace(StorageService):
    """One table, and the part of it that is one queue's.

    Attributes:
        queue: the partition of the queue: no two queues share one, wherever they are.
        spec: of the queue, for messages.
    """

    queue: str
    spec: str

    def __str__(self) -> str:
        return f"{self.account} (table {TABLE})"


def place_of(spec: QueueSpec, settings: Settings) -> TablePlace | None:
    """Return where the journal of a queue is kept; None = nowhere (JOBQ_JOURNAL).

    Raises:
        ConfigurationError: JOBQ_JOURNAL, or the connection string, cannot be meant.
    """
    if not settings.journal.startswith("tables"):
        return None
    account = settings.journal.removeprefix(_SCHEME) if settings.journal.startswith(_SCHEME) else ""
    account = account or spec.location
    if not _ACCOUNT.fullmatch(account):
        raise ConfigurationError(
            f"JOBQ_JOURNAL: {account!a} is not the name of a storage account: 3 to 24 lower-case letters and digits"
        )
    given = settings.journal_connection_string
    if given is None and account == spec.location:
        given = connection_string_of(settings.connection_string, settings.azurite, os.environ)
    if given is None and settings.azurite and account == AZURITE:
        given = connection_string_of(None, True, {})
    queue = f"q!{spec.location.partition('.')[0].lower()}!{spec.queue.lower()}"
    return _place(account, given, settings.endpoint_suffix, queue, str(spec))


def _place(account: str, connection_string: str | None, suffix: str, queue: str, spec: str) -> TablePlace:
    if connection_string is None:
        return TablePlace(account=account, url=f"https://{account}.table.{suffix}", queue=queue, spec=spec)
    parts = parts_of(connection_string)
    if (owner := parts.get("accountname", account)) != account:
        raise ConfigurationError(
            f"the journal is in the account {account!r} (JOBQ_JOURNAL), and its connection string is of {owner!r}: put"
            " the right one into JOBQ_JOURNAL_CONNECTION_STRING"
        )
    if "queueendpoint" in parts and "tableendpoint" not in parts:
        # An address given for queues alone says that this account is reached in a way of its own.
        raise ConfigurationError(
            f"{account}: the connection string has a QueueEndpoint and no TableEndpoint, so nobody knows where the"
            " journal's table is: add TableEndpoint=..., or set JOBQ_JOURNAL=off"
        )
    protocol = parts.get("defaultendpointsprotocol", "https")
    url = parts.get("tableendpoint", f"{protocol}://{account}.table.{parts.get('endpointsuffix', suffix)}")
    return TablePlace(
        account=account,
        url=url.rstrip("/"),
        queue=queue,
        spec=spec,
        key=parts.get("accountkey"),
        signature=None if "accountkey" in parts else parts["sharedaccesssignature"].removeprefix("?"),
    )
