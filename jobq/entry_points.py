"""What serves which name: jobq's own from a table, other packages' by what they register (`importlib.metadata`).

Jobq's own comes first, so that nobody takes its place; to read what is installed takes longer than a command does.
"""

from importlib import import_module
from typing import Any, Final

# By group and name, as other packages register theirs: the value names a module and what it holds.
OWN: Final = {
    # One for each kind of spec (architecture 3): the name is the URL scheme; "embedded" serves a spec without a slash.
    # The value is a callable(QueueSpec, Settings) -> Backend.
    "jobq.backends": {
        "embedded": "jobq_sqlite:connect_embedded",
        "sqlite": "jobq_sqlite:connect",
        "memory": "jobq_memory:connect",
        "storage-queue": "jobq_azure:connect",
        "sb": "jobq_azure:connect_service_bus",
        "postgresql": "jobq_postgres:connect",
        "postgres": "jobq_postgres:connect",
        "http": "jobq_http:connect",
        "https": "jobq_http:connect",
    },
    # What `fanout` can list beside rows and lines: a callable(place, Settings) -> Fetch.
    "jobq.listings": {"blobs": "jobq_azure:blobs"},
    # Whose rows it can walk beside SQLite's, by URL scheme: a callable(database, query, key) -> Fetch, name.
    "jobq.rows": {"postgresql": "jobq_postgres:connect_rows", "postgres": "jobq_postgres:connect_rows"},
    # Where tasks' files are kept beside folders: a callable(account, container, prefix, suffix, Settings) -> Place.
    "jobq.places": {"az": "jobq_azure:container"},
}


def registered(group: str, name: str) -> str | None:
    """Return what is registered under a name, as `module:name`; None = nothing.

    Args:
        group: such as `jobq.backends`.
        name: such as `sqlite`.
    """
    if (own := OWN.get(group, {}).get(name)) is not None:
        return own
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes long, and is for others' alone

    return next((each.value for each in entry_points(group=group, name=name)), None)


def load(value: str) -> Any:
    """Return what is registered; raises ModuleNotFoundError where a package that it needs is missing."""
    module, _, name = value.partition(":")
    found: Any = import_module(module.strip())
    for part in filter(None, name.partition("[")[0].strip().split(".")):
        found = getattr(found, part)
    return found


def registered_names(group: str) -> list[str]:
    """Return all names of a group, sorted."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - as above

    return sorted({*OWN.get(group, {}), *entry_points(group=group).names})
