"""What installed packages register; jobq's own is found without a look at the others: to read each takes long."""

from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points


def registered(group: str, name: str) -> EntryPoint | None:
    """Return what is registered under a name; jobq's own comes first, so that nobody takes its place.

    Args:
        group: such as `jobq.backends`.
        name: such as `sqlite`.
    """
    try:
        own = distribution("jobq").entry_points.select(group=group, name=name)
    except PackageNotFoundError:  # on the path, but not installed
        own = entry_points(group=group, name=name)
    return next(iter(own or entry_points(group=group, name=name)), None)


def registered_names(group: str) -> list[str]:
    """Return all names of a group, sorted."""
    return sorted(entry_points(group=group).names)
