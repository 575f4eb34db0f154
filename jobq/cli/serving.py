"""What commands that serve over HTTP share."""

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from jobq.cli.common import Invocation
from jobq.cli.display import terminal
from jobq.errors import BackendMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

# By the extras `server` and `ui`.
_BROUGHT: Final = frozenset(
    {"uvicorn", "httptools", "prometheus_client", "uvloop", "starlette", "jinja2", "markupsafe"}
)


def take_spec(context: click.Context, spec: str) -> None:
    """Let a spec that stands behind the command be the one that is meant; raises UsageError for a second one."""
    invocation = context.ensure_object(Invocation)
    if invocation.spec is not None and not context.resilient_parsing:
        raise click.UsageError("the place to serve is named twice, before and after `serve`", context)
    invocation.spec = spec


@contextmanager
def missing_extra(what: str, extra: str) -> "Iterator[None]":
    """Say which extra brings what cannot be imported; raises BackendMissing.

    Args:
        what: needs it.
        extra: of jobq.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _BROUGHT:
            raise
        raise BackendMissing(f"{what} needs {error.name!r}; install it with: pip install 'jobq[{extra}]'") from error


class _Lines(logging.Handler):
    """Writes records to standard error as the other lines of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; logging's rule: a record that cannot be shown harms nobody."""
        try:
            for line in self.format(record).split("\n"):
                terminal.say(line, is_error=True)
        except Exception:  # noqa: BLE001 - see above
            self.handleError(record)


@contextmanager
def log_to_stderr() -> "Iterator[None]":
    """Log the audit, one line of JSON each, and all else as text to standard error, by a thread that writes."""
    for name, form, level in (
        ("jobq.audit", "%(message)s", logging.INFO),
        ("jobq", "%(asctime)s %(levelname)s %(name)s: %(message)s", logging.INFO),
        ("uvicorn", "%(asctime)s %(levelname)s %(name)s: %(message)s", logging.ERROR),
    ):
        handler = _Lines()
        handler.setFormatter(logging.Formatter(form))
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
    with terminal.by_thread():
        yield
