"""Paths that a user wrote: `~` is made a folder, and what cannot be is said in one line."""

from pathlib import Path

from jobq.errors import ConfigurationError


def user_path(text: str | Path, what: str, *, resolve: bool = False) -> Path:
    """Return a path with its `~` expanded.

    Args:
        text: the path as it was written.
        what: where it was written, for messages: a variable or an option.
        resolve: whether to return what its links lead to.

    Raises:
        ConfigurationError: nobody knows the home folder that it names, or its links lead in a circle.
    """
    try:
        path = Path(text).expanduser()
        target = path.resolve()
    except FileNotFoundError:
        raise _no_working_folder() from None
    except OSError as error:
        raise ConfigurationError(f"{what}: {error.strerror}: {text}") from None
    except RuntimeError as error:
        if "loop" in str(error):
            raise ConfigurationError(f"{what}: the link {text} leads back to itself") from None
        raise ConfigurationError(
            f"{what}: the home folder in {text} is not known: set HOME, or name a folder in full"
        ) from None
    return target if resolve else path


def working_folder() -> Path:
    """Return the working directory; raises ConfigurationError when it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise _no_working_folder() from None


def _no_working_folder() -> ConfigurationError:
    return ConfigurationError("the working directory was removed: change to one that exists, and try again")
