"""The blobs of a container, page by page: a ready data set for a traversal."""

import os
from collections.abc import Mapping
from typing import Any

from jobq.errors import BackendUnavailable, ConfigurationError, InvalidSpec
from jobq.lease.traversal import Fetch, Page
from jobq.settings import Settings
from jobq_azure.common.errors import NoAnswer, NoBlob
from jobq_azure.storage.account import Account, connection_string_of
from jobq_azure.storage.blob_client import listed


def connect_listing(place: str, settings: Settings) -> Fetch[Mapping[str, str]]:
    """Return a fetch of the blobs of ACCOUNT/CONTAINER[/PREFIX], by name; the cursor is the service's marker.

    Each blob is a mapping of its name and its size in bytes.

    Raises:
        InvalidSpec: the place names no container.
        ConfigurationError: the connection string is not one of this account.
    """
    account, _, rest = place.partition("/")
    container, _, prefix = rest.partition("/")
    if not account or not container:
        raise InvalidSpec(f"{place!a} names no container; write ACCOUNT/CONTAINER or ACCOUNT/CONTAINER/PREFIX")
    given = connection_string_of(settings.connection_string, settings.azurite, os.environ)

    async def fetch(after: Any, limit: int) -> Page[Mapping[str, str]]:
        async with Account(account, given, settings.endpoint_suffix) as entered:
            try:
                found, marker = await listed(entered.container(container), prefix, after, limit, place)
            except NoBlob:
                raise ConfigurationError(f"there is no container {account}/{container}") from None
            except NoAnswer as error:
                raise BackendUnavailable(str(error)) from None
        return Page(found, marker, is_last=marker is None)

    return fetch
