"""How a place for files is written: a folder, or a container of blobs. Text alone; `file_store` opens it."""

import re
from typing import Final, NamedTuple

_CONTAINER: Final = re.compile(
    r"az://(?P<account>[a-z0-9]{3,24})/(?P<container>[a-z0-9](?:-?[a-z0-9]){2,62})(?:/(?P<prefix>.*))?"
)
_ADDRESS: Final = re.compile(
    r"https://(?P<account>[a-z0-9]{3,24})\.blob\.(?P<suffix>[a-z0-9.-]+)"
    r"/(?P<container>[a-z0-9](?:-?[a-z0-9]){2,62})(?:/(?P<prefix>.*))?"
)
_MARKS: Final = "?#@"  # marks of what may hold a signature or a password (A5)


class Container(NamedTuple):
    """A container of blobs.

    Attributes:
        account: the storage account's name.
        suffix: of the account's address, such as core.windows.net; None = it was not written.
        container: its name.
        prefix: of the names of all blobs, without slashes around it; empty = none.
    """

    account: str
    suffix: str | None
    container: str
    prefix: str


def is_container(text: str) -> bool:
    """Return whether a text names a container, and no folder."""
    return "://" in text


def checked_place(text: str) -> str:
    """Return a place as it was written; raises ValueError that says what would be right."""
    if not is_container(text):
        if "\0" in text or not text.strip():
            raise ValueError("is no folder")
        return text
    if any(mark in text for mark in _MARKS):
        raise ValueError("holds a signature or a password: name the container alone; JOBQ_CONNECTION_STRING signs in")
    container_in(text)
    return text


def container_in(text: str) -> Container:
    """Return the container that a text names; raises ValueError that says what would be right."""
    if (found := _CONTAINER.fullmatch(text) or _ADDRESS.fullmatch(text)) is None:
        raise ValueError(
            "is neither a folder nor a container, as az://ACCOUNT/CONTAINER or"
            " https://ACCOUNT.blob.core.windows.net/CONTAINER is"
        )
    parts = found.groupdict()
    return Container(parts["account"], parts.get("suffix"), parts["container"], (parts["prefix"] or "").strip("/"))
