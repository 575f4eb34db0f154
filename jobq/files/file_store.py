"""The protocol of a place for files, and where a text such as `/mnt/shared` or `az://ACCOUNT/CONTAINER` leads to.

A folder is served here. A container of blobs is a backend's, found through the entry point group `jobq.places`, so the
core imports no Azure.
"""

from pathlib import Path
from typing import Any, Final, Protocol, Self

from jobq.entry_points import load, registered
from jobq.errors import BackendMissing, ConfigurationError
from jobq.files.location import checked_place, container_in, is_container
from jobq.formats.user_paths import user_path
from jobq.settings import Settings

ENTRY_POINT_GROUP: Final = "jobq.places"


class FileStore(Protocol):
    """An asynchronous context manager; names are parts with slashes between them, none of which begins with a dot.

    Every verb may raise BackendUnavailable (it was not done as far as is known; repeating is safe) and AccessDenied.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def scratch(self) -> Path | None:
        """Return a folder from which `put` moves a file without copying it; None = any will do."""
        ...

    async def put(self, name: str, source: Path) -> None:
        """Keep a file under a name that was never used; durable and whole, or not there. The source may be moved."""
        ...

    async def fetch(self, name: str, into: Path) -> Path:
        """Return where the file can be read: `into`, or its own path. Raises FileNotFoundError."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """Return the names that begin so."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    async def read(self, name: str, offset: int, most: int) -> bytes:
        """Return up to `most` bytes from there on, none at its end. Raises FileNotFoundError."""
        ...

    async def append(self, name: str, offset: int, chunk: bytes) -> None:
        """Add to the end of a file whose length is `offset`, and make it when that is 0; repeating it is safe."""
        ...


def place_at(text: str, settings: Settings) -> FileStore:
    """Return the place, not yet entered.

    Args:
        text: a folder, `az://ACCOUNT/CONTAINER[/PREFIX]` or the container's https address.
        settings: sign in to the account.

    Raises:
        ConfigurationError: it is none, or nothing here serves it.
    """
    try:
        checked_place(text)
    except ValueError as error:
        raise ConfigurationError(f"this place for files {error}") from None
    if not is_container(text):
        from jobq.files.folder_store import FolderStore  # noqa: PLC0415 - the other way round it is no import of ours

        return FolderStore(user_path(text, "the place for files"))
    container_of = registered(ENTRY_POINT_GROUP, "az")
    if container_of is None:
        raise BackendMissing("no package here serves containers of blobs; run: pip install --force-reinstall jobq")
    connect: Any = load(container_of)
    account, suffix, container, prefix = container_in(text)
    place: FileStore = connect(account, container, prefix, suffix, settings)
    return place
