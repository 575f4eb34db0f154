"""From a queue spec such as `acct/q` to the backend that serves it (architecture 3), through entry points."""

import re
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from jobq.backend import Backend
from jobq.entry_points import load, registered, registered_names
from jobq.errors import BackendMissing, ConfigurationError, InvalidSpec
from jobq.formats.lazy_dataclass import dataclass
from jobq.settings import Settings

if TYPE_CHECKING:
    from jobq.journal.views import Views

ENTRY_POINT_GROUP: Final = "jobq.backends"
EMBEDDED: Final = "embedded"
STORAGE_QUEUE: Final = "storage-queue"
_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Which extra of the jobq package brings what a scheme needs; a third party's backend names its own.
_EXTRA_OF: Final = {"postgresql": "postgres", "postgres": "postgres"}

_OWN_JOURNAL: Final = frozenset({EMBEDDED, "sqlite", "postgresql", "postgres", "memory", "http", "https"})
_ENDINGS: Final = (".db", ".sqlite", ".sqlite3")
_FILE: Final = re.compile(r"\.(?:db|sqlite3?)(?:/|$)")
_URLS: Final = frozenset({"sb", "http", "https", "postgresql", "postgres", "memory"})
# An address as a portal shows it, whose queue goes by a shorter name; and one of a service that names no queue yet.
_OF_AZURE: Final = re.compile(r"(?:https?://)?([\w-]+)\.(queue|servicebus)\.[a-z.]+/([\w.-]+)/?", re.ASCII)
_NO_QUEUE: Final = re.compile(r"(?:https?|sb)://[\w.-]+(?::\d+)?/?", re.ASCII)
_FILES: Final = frozenset({"sqlite", "file"})
_SOME_QUEUE: Final = "queue"  # stands for any of a place
_origins: Final[MutableMapping[Backend, tuple["QueueSpec", Settings]]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class QueueSpec:
    """A spec, taken apart.

    Attributes:
        scheme: the URL scheme; `embedded` for a bare name, `storage-queue` for ACCOUNT/QUEUE.
        location: what stands between the scheme and the queue; may be empty.
        queue: the last path segment.
    """

    scheme: str
    location: str
    queue: str

    def __str__(self) -> str:
        if self.scheme == EMBEDDED:
            return self.queue
        if self.scheme == STORAGE_QUEUE:
            return f"{self.location}/{self.queue}"
        return f"{self.scheme}://{self.location}/{self.queue}"


class Connect(Protocol):
    """What an entry point of the group `jobq.backends` names."""

    def __call__(self, spec: QueueSpec, settings: Settings) -> Backend:
        """Return the backend, not yet connected. Raises ConfigurationError for a spec it cannot serve."""
        ...


def parse(text: str) -> QueueSpec:
    """Take a spec apart.

    Raises:
        InvalidSpec: it has no queue, a queue name that services refuse, or a password in it.
    """
    if (meant := _meant(text)) is not None:
        raise InvalidSpec(f"{_shown(text)} is no queue spec; {meant}")
    if "://" not in text:
        location, _, queue = text.rpartition("/")
        return _checked(text, QueueSpec(scheme=STORAGE_QUEUE if location else EMBEDDED, location=location, queue=queue))
    scheme, _, rest = text.partition("://")
    location, _, queue = rest.rpartition("/")
    try:
        password = urlsplit(text).password
    except ValueError as error:
        raise InvalidSpec(f"cannot read this queue spec: {error}") from None
    if password is not None:
        is_postgres = _EXTRA_OF.get(scheme.lower()) == "postgres"
        where = "~/.pgpass, or into a file named by PGPASSFILE" if is_postgres else "JOBQ_HTTP_TOKEN"
        raise InvalidSpec(
            f"a password does not belong into a queue spec: it shows in `ps` and in logs; put it into {where}"
        )
    return _checked(text, QueueSpec(scheme=scheme.lower(), location=location, queue=unquote(queue)))


def parse_place(text: str) -> QueueSpec:
    """Take the spec of a place apart, or of a queue there; a place alone has "" for its queue.

    Places are such as `sqlite:///data/jobs.db`, `postgresql://HOST/DATABASE`, and "" for the embedded queues.

    Raises:
        InvalidSpec: it is neither.
    """
    scheme, colon, rest = text.partition("://")
    base, _, options = rest.partition("?")
    folder, _, name = base.rpartition("/")
    is_file = scheme.lower() == "sqlite" and name.endswith(_ENDINGS) and not folder.endswith(_ENDINGS)
    is_database = _EXTRA_OF.get(scheme.lower()) == "postgres" and base.count("/") == 1 and "/" not in options
    is_alone = is_file or is_database or (scheme.lower() == "memory" and rest and "/" not in rest)
    if text and not (colon and is_alone):
        return parse(text)
    found = parse(f"{text}/{_SOME_QUEUE}" if text else _SOME_QUEUE)  # what is wrong with the place is said there
    return replace(found, queue="")


def _checked(text: str, spec: QueueSpec) -> QueueSpec:
    if not _QUEUE_NAME.fullmatch(spec.queue):
        raise InvalidSpec(
            f"{_shown(text)} is not a queue name, or a spec that ends in one: 1 to 63 letters, digits, dots, dashes and"
            " underscores, as in `demo`, `myaccount/myqueue` or `sqlite:///data/jobs.db/myqueue`"
        )
    return spec


def _meant(text: str) -> str | None:
    """Return what a text was probably meant to be that would be taken for something else; None = nothing else."""
    if of_azure := _OF_AZURE.fullmatch(text):
        account, service, queue = of_azure.groups()
        return f"did you mean {account}/{queue}?" if service == "queue" else f"did you mean sb://{account}/{queue}?"
    scheme, colon, rest = text.partition(":")
    folder, _, name = rest.rpartition("/")
    if "://" in text:
        is_file = scheme.lower() == "sqlite" and name.endswith(_ENDINGS) and not folder.endswith(_ENDINGS)
        lacks_queue = is_file or _NO_QUEUE.fullmatch(text)
        return f"its last part is the queue, as in {text.rstrip('/')}/demo" if lacks_queue else None
    if colon and scheme.lower() in _FILES:
        return f"did you mean sqlite://{rest}?"
    if colon and scheme.lower() in _URLS and "@" not in rest:
        return f"did you mean {scheme.lower()}://{rest.lstrip('/')}?"
    return _meant_as_path(text) if text.startswith(("/", "~", ".")) or _FILE.search(text) else None


def _meant_as_path(text: str) -> str | None:
    folder, _, name = text.rpartition("/")
    if not _QUEUE_NAME.fullmatch(name):
        return None  # what a queue may be called is said then
    if name.endswith(_ENDINGS):
        return f"a queue in that file is sqlite://{text}/demo"
    if folder.endswith(_ENDINGS):
        return f"did you mean sqlite://{folder.removeprefix('./')}/{name}?"
    return f"did you mean {name} (a queue of this machine), or sqlite://{folder}/jobs.db/{name} (one in a file)?"


def _shown(text: str) -> str:
    """Return a spec for a message; what may hold a secret (a connection string, a query) is not repeated (A5)."""
    if any(mark in text for mark in "=?;&#"):
        return "this spec (not shown: it may hold a secret; connection strings belong into JOBQ_CONNECTION_STRING)"
    return ascii(text)


def resolve(text: str, settings: Settings) -> Backend:
    """Return the backend for a spec, not yet connected.

    Raises:
        InvalidSpec: see `parse`.
        BackendMissing: nothing serves the scheme; the message names what would.
        ConfigurationError: JOBQ_JOURNAL names a place that is not for such a queue.
    """
    spec = parse(text)
    return _connected(spec, text, settings)


def resolve_views(text: str, settings: Settings) -> "Views":
    """Return what reads all queues of a place, not yet entered.

    Args:
        text: as for `parse_place`; which queue it names makes no difference.
        settings: for its backend.

    Raises:
        ConfigurationError: as `resolve`, and where the place cannot be looked at as a whole.
    """
    from jobq.journal.views import views_of  # noqa: PLC0415 - short commands must not pay for it

    place = parse_place(text)
    return views_of(_connected(replace(place, queue=place.queue or _SOME_QUEUE), text, settings))


def _connected(spec: QueueSpec, text: str, settings: Settings) -> Backend:
    found = registered(ENTRY_POINT_GROUP, spec.scheme)
    if found is None:
        raise BackendMissing(_unknown_scheme(spec, registered_names(ENTRY_POINT_GROUP)))
    try:
        connect: Connect = load(found)
    except ModuleNotFoundError as error:
        if extra := _EXTRA_OF.get(spec.scheme):
            raise BackendMissing(
                f"{spec.scheme}:// needs the package {error.name!r}; install it with: pip install 'jobq[{extra}]'"
            ) from error
        raise BackendMissing(
            f"the backend for {spec.scheme}:// ({found}) needs the package {error.name!r}, which is"
            " not installed; its own documentation names the extra"
        ) from error
    if settings.journal.startswith("tables") and spec.scheme in _OWN_JOURNAL:
        raise ConfigurationError(
            f"JOBQ_JOURNAL={settings.journal} is for a Storage Queue, and {_shown(text)} is none: SQL queues keep their"
            " journal in their own database; unset it"
        )
    backend = connect(spec, settings)
    with suppress(TypeError):  # what cannot be remembered so is still a backend
        _origins[backend] = spec, settings
    return backend


def origin_of(backend: Backend) -> tuple[QueueSpec, Settings] | None:
    """Return by which spec and with which settings a queue was opened; None = by none."""
    return _origins.get(backend)


def sibling(backend: Backend, queue: str, **changes: object) -> Backend:
    """Return the backend of another queue of the same location, not yet connected.

    Args:
        backend: of a queue there.
        queue: the other's name.
        changes: settings that are others for it.

    Raises:
        ConfigurationError: nobody knows where this one is, since no spec led to it; or there can be no such queue.
    """
    origin = origin_of(backend)
    if origin is None:
        raise ConfigurationError(f"queue {backend.name!r} was not opened by a spec, so no other is known beside it")
    spec, settings = origin
    return resolve(str(replace(spec, queue=queue)), settings.copied(changes))


def _unknown_scheme(spec: QueueSpec, known: list[str]) -> str:
    shown = [_EXAMPLES.get(name, f"{name}://.../QUEUE") for name in known]
    if not known:
        return "no backend is registered: this jobq is not properly installed; run: pip install --force-reinstall jobq"
    what = "ACCOUNT/QUEUE (Azure Storage Queue)" if spec.scheme == STORAGE_QUEUE else f"{ascii(spec.scheme)[1:-1]}://"
    return f"no installed backend serves {what}; known here: {', '.join(shown)}"


_EXAMPLES: Final = {
    EMBEDDED: "QUEUE (embedded)",
    STORAGE_QUEUE: "ACCOUNT/QUEUE",
    "sqlite": "sqlite:///FILE.db/QUEUE",
    "memory": "memory://NAME/QUEUE",
    "http": "http://HOST:8000/QUEUE",
    "https": "https://HOST/QUEUE",
    "sb": "sb://NAMESPACE/QUEUE",
    "postgres": "postgres://USER@HOST/DATABASE/QUEUE",
    "postgresql": "postgresql://USER@HOST/DATABASE/QUEUE",
}
