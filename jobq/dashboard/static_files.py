"""The files that pages load: all that were shipped, each under an address that changes with what is in it."""

import hashlib
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

STATIC: Final = "/ui/static"


def static_link(name: str) -> str:
    """Return the address of a file; raises KeyError where there is none of this name."""
    return f"{STATIC}/{_FILES[name][0]}/{name}"


def static_file(hash_: str, name: str) -> bytes | None:
    """Return a file by the two parts of its address; None = we have none of this name and content."""
    held = _FILES.get(name)
    return held[1] if held is not None and held[0] == hash_ else None


def static_text(name: str) -> str:
    """Return what a file says, such as a licence; raises KeyError where there is none of this name."""
    return _FILES[name][1].decode()


def _shipped(folder: Traversable, above: str = "") -> Iterator[tuple[str, tuple[str, bytes]]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _shipped(each, f"{above}{each.name}/")
        else:
            body = each.read_bytes()
            yield above + each.name, (hashlib.sha256(body).hexdigest()[:16], body)


# What an address says is looked up here, and never joined to a path.
_FILES: Final[Mapping[str, tuple[str, bytes]]] = dict(_shipped(resources.files("jobq.dashboard") / "static"))
