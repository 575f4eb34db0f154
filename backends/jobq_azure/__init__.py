"""Azure Storage Queue (`myaccount/myqueue`) and Azure Service Bus (`sb://mynamespace/myqueue`)."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobq.errors import ConfigurationError
from jobq.lease.traversal import Fetch
from jobq.settings import Settings
from jobq.spec import QueueSpec

if TYPE_CHECKING:
    from jobq_azure.ledger.queue import LedgerQueue
    from jobq_azure.service_bus.backend import ServiceBusBackend
    from jobq_azure.storage.backend import StorageQueueBackend
    from jobq_azure.storage.blob_file_store import BlobPlace

__all__ = ["blobs", "connect", "connect_service_bus", "container"]


def connect(spec: QueueSpec, settings: Settings) -> "StorageQueueBackend | LedgerQueue":
    """Return the backend for ACCOUNT/QUEUE; with a journal in a table, where JOBQ_JOURNAL says so.

    Raises:
        InvalidSpec: the service takes no such names.
        ConfigurationError: the connection string is not one of this account, or JOBQ_AZURITE means another.
    """
    from jobq_azure.storage.account import AZURITE, Account, check_names, connection_string_of  # noqa: PLC0415 - as above
    from jobq_azure.storage.backend import StorageQueueBackend  # noqa: PLC0415 - 0.4 s for the SDK, which few commands need
    from jobq_azure.table_journal.location import place_of as place_of_journal  # noqa: PLC0415 - as above

    check_names(spec.location, spec.queue)
    if settings.azurite and spec.location != AZURITE:
        raise ConfigurationError(
            f"JOBQ_AZURITE=1 means the emulator on this machine, which has one account: write {AZURITE}/{spec.queue},"
            f" or unset JOBQ_AZURITE to use account {spec.location!r}"
        )
    given = connection_string_of(settings.connection_string, settings.azurite, os.environ)
    account = Account(spec.location, given, settings.endpoint_suffix)
    queue = StorageQueueBackend(account, spec.queue, settings.poll_max)
    if (journal := place_of_journal(spec, settings)) is None:
        return queue
    from jobq_azure.ledger.queue import LedgerQueue  # noqa: PLC0415 - as above

    return LedgerQueue(queue, journal, settings.keep)


def connect_service_bus(spec: QueueSpec, settings: Settings) -> "ServiceBusBackend":
    """Return the backend for sb://NAMESPACE/QUEUE.

    Raises:
        InvalidSpec: the service takes no such names.
        ConfigurationError: the connection string is not one of this namespace, or a setting cannot be.
    """
    from jobq_azure.service_bus.backend import ServiceBusBackend  # noqa: PLC0415 - 0.2 s that few commands need
    from jobq_azure.service_bus.namespace import Namespace, place_of  # noqa: PLC0415 - as above
    from jobq_azure.service_bus.options import NO_TABLES, Options  # noqa: PLC0415 - as above

    if settings.journal.startswith("tables"):
        raise ConfigurationError(f"JOBQ_JOURNAL={settings.journal} is not for {spec}: {NO_TABLES}")
    place = place_of(spec.location, spec.queue, settings.connection_string, settings.endpoint_suffix)
    return ServiceBusBackend(Namespace(place), Options.of(settings))


def blobs(place: str, settings: Settings) -> Fetch[Mapping[str, str]]:
    """Return a fetch of the blobs of ACCOUNT/CONTAINER[/PREFIX]; see `jobq_azure.storage.blob_listing`."""
    from jobq_azure.storage.blob_listing import connect_listing  # noqa: PLC0415 - as in `connect`

    return connect_listing(place, settings)


def container(account: str, name: str, prefix: str, suffix: str | None, settings: Settings) -> "BlobPlace":
    """Return a container of blobs as a place for files; see `jobq_azure.storage.blob_file_store.container`."""
    from jobq_azure.storage import blob_file_store  # noqa: PLC0415 - as in `connect`

    return blob_file_store.container(account, name, prefix, suffix, settings)
