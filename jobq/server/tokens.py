"""Bearer tokens: who may do what to which queue, and the audit. Kept as hashes in the place that is served (A8).

But for the one with which its owner's own commands use a service on this machine's loopback: that is made anew at each
start, and kept in a file alone. Who takes the port once the service has ended, and is sent the token by commands that
know of no end, has nothing of it.

A token is `jobq_ID_SECRET`: the id names it in lists and in the audit, the secret has 256 bits, so that one round of
SHA-256 is enough of a hash.
"""

import asyncio
import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from jobq.errors import BackendUnavailable, ConfigurationError, JobqError
from jobq.servable import Servable, change_document

_log: Final = logging.getLogger(__name__)
_audit: Final = logging.getLogger("jobq.audit")
_DOCUMENT: Final = "tokens"
_FRESH_SECONDS: Final = 2.0  # how long a revoked token may still be taken, beside what a reading takes
_STALE_SECONDS: Final = 60.0  # how long tokens are believed while the store does not answer
_PARTS: Final = 3
_NAMED: Final = 100  # tasks in one line of the audit: a log cuts long lines
_NOBODY: Final = hashlib.sha256(b"").hexdigest()
ALL_QUEUES: Final = "*"


class Scope(StrEnum):
    """What a token permits."""

    ENQUEUE = "enqueue"  # add tasks, make the queue
    LEASE = "lease"  # claim tasks and keep them, named leases too
    SETTLE = "settle"  # end what was claimed
    WATCH = "watch"  # numbers
    VIEW = "view"  # and what runs, what it printed, results, leases; no values of variables, no bodies
    READ = "read"  # and these
    OPERATE = "operate"  # cancel, retry
    ADMIN = "admin"  # and delete, the generator, leases of others


# By which others a scope is permitted too.
_GIVEN_BY: Final = {
    Scope.WATCH: frozenset({Scope.WATCH, Scope.VIEW, Scope.READ}),
    Scope.VIEW: frozenset({Scope.VIEW, Scope.READ}),
    Scope.OPERATE: frozenset({Scope.OPERATE, Scope.ADMIN}),
}


@dataclass(frozen=True, kw_only=True)
class TokenRecord:
    """A token as it is kept.

    Attributes:
        id: names it.
        name: for people.
        hash: SHA-256 of its secret, hexadecimal.
        scopes: what it permits.
        queues: on which queues; "*" = all.
        created: wall time, seconds since the epoch.
    """

    id: str
    name: str
    hash: str
    scopes: tuple[str, ...]
    queues: tuple[str, ...]
    created: float

    def permits(self, scope: Scope, queue: str) -> bool:
        """Return whether it permits this."""
        return not _GIVEN_BY.get(scope, {scope}).isdisjoint(self.scopes) and (
            ALL_QUEUES in self.queues or queue in self.queues
        )


class TokenBook:
    """The tokens of a place, read again when they are a little old.

    Args:
        store: keeps them; None = there are none but those that are added.
    """

    def __init__(self, store: Servable | None) -> None:
        self._store = store
        self._own: dict[str, TokenRecord] = {}
        self._records: dict[str, TokenRecord] = {}
        self._is_kept = False
        self._read_at = -_STALE_SECONDS
        self._tried_at = -_STALE_SECONDS
        self._reading = asyncio.Lock()

    def add(self, record: TokenRecord) -> None:
        """Let one more token in for as long as this service lives; it is not written to the database."""
        self._own[record.id] = record
        _note("token made", record)

    async def is_kept(self) -> bool:
        """Return whether a token was ever made here; to revoke the last one must not open the service to everybody."""
        await self._refresh()
        return self._is_kept

    async def holder_of(self, token: str) -> TokenRecord | None:
        """Return the record of a token, if it is one that is known; raises BackendUnavailable where no one can say.

        Whoever brings one that is not should be let `read_again` before it is refused, as often as strangers may try.
        """
        await self._refresh()
        parts = token.split("_", 2)
        record = self._known(parts[1]) if len(parts) == _PARTS and parts[0] == "jobq" else None
        given = hashlib.sha256(parts[-1].encode("utf-8", "replace")).hexdigest()
        # The comparison takes the same time whatever is compared, also where there is nothing to compare with.
        is_right = hmac.compare_digest(given, _NOBODY if record is None else record.hash)
        return record if is_right and record is not None else None

    async def record(self, token_id: str) -> TokenRecord | None:
        """Return the record of a token by its id, while it is good; raises BackendUnavailable as `holder_of` does."""
        await self._refresh()
        if self._known(token_id) is None:
            await self.read_again()
        return self._known(token_id)

    async def read_again(self) -> None:
        """Read the tokens as they are from now on: one may just have been made. Who wait together share a reading.

        Raises:
            BackendUnavailable: they could not be read for so long that what is known is not believed any more.
        """
        if self._store is None:
            return
        asked_at = time.monotonic()
        async with self._reading:
            if self._tried_at < asked_at:
                await self._read(self._store)
        if asked_at - self._read_at >= _STALE_SECONDS:
            raise BackendUnavailable("nobody can say which tokens are good")

    def _known(self, token_id: str) -> TokenRecord | None:
        return self._own.get(token_id) or self._records.get(token_id)

    async def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._read_at < _STALE_SECONDS and (now - self._tried_at < _FRESH_SECONDS or self._reading.locked()):
            return  # in the latter case the store does not answer: whoever asks it waits, and nobody else
        await self.read_again()

    async def _read(self, store: Servable) -> None:
        began_at = self._tried_at = time.monotonic()
        try:
            document = await store.document(_DOCUMENT)
            self._take({record.id: record for record in _records_of(None if document is None else document.value)})
        except asyncio.CancelledError:  # who asked has gone: the next one reads
            self._tried_at = -_STALE_SECONDS
            raise
        except JobqError as error:
            _log.warning("the tokens cannot be read, those known are believed for %g s: %s", _STALE_SECONDS, error)
        else:
            self._is_kept = document is not None
            self._read_at = began_at

    def _take(self, records: dict[str, TokenRecord]) -> None:
        if self._read_at > 0:  # else they may have been there for long
            for did, known, others in (
                ("token made", records, self._records),
                ("token revoked", self._records, records),
            ):
                for token_id in known.keys() - others.keys():
                    _note(did, known[token_id])
        self._records = records


def audit(did: str, *, caller: str = "-", address: str = "-", **more: Any) -> None:
    """Write the audit's one line of a change or a refusal: who did what, and how it ended; no contents (A5).

    Args:
        did: what was done.
        caller: the id of a token; "-" = anyone.
        address: where the caller is.
        **more: to what it was done. A list of many tasks, `ids` or `work`, is written in several lines, all of it.
    """
    fields = {"at": round(time.time(), 3), "caller": caller, "from": address, "did": did, **more}
    lists = {name: fields[name] for name in ("ids", "work") if name in fields}
    for first in range(0, max([1, *map(len, lists.values())]), _NAMED):
        part = {name: names[first : first + _NAMED] for name, names in lists.items()}
        _audit.info("%s", json.dumps({**fields, **part, **({"first": first} if first else {})}))


def _note(did: str, record: TokenRecord) -> None:
    fields = {name: value for name, value in asdict(record).items() if name not in ("id", "hash")}
    audit(did, token=record.id, **fields)


async def records(store: Servable) -> list[TokenRecord]:
    """Return all tokens, oldest first."""
    document = await store.document(_DOCUMENT)
    return _records_of(None if document is None else document.value)


async def create(store: Servable, name: str, scopes: Sequence[str], queues: Sequence[str]) -> tuple[TokenRecord, str]:
    """Make a token; return its record and the token itself, which is never to be had again."""
    record, token = new_token(secrets.token_hex(6), name, scopes, queues)

    def add(known: list[TokenRecord]) -> list[TokenRecord]:
        return [*known, record]

    await _change(store, add)
    return record, token


def new_token(token_id: str, name: str, scopes: Sequence[str], queues: Sequence[str]) -> tuple[TokenRecord, str]:
    """Return the record of a new token, and the token itself."""
    secret = secrets.token_urlsafe(32)
    record = TokenRecord(
        id=token_id,
        name=name,
        hash=hashlib.sha256(secret.encode()).hexdigest(),
        scopes=tuple(scopes),
        queues=tuple(queues),
        created=time.time(),
    )
    return record, f"jobq_{token_id}_{secret}"


def write_owners_token(path: Path) -> TokenRecord:
    """Return the record of a token that permits everything, and leave the token where nobody else can read it.

    Args:
        path: of the file; one that is there is replaced. Its folder is there, and this process alone in it.

    Raises:
        ConfigurationError: it cannot be written.
    """
    record, token = new_token("local", "the owner's commands on this machine", tuple(Scope), (ALL_QUEUES,))
    try:
        # Of mode 0600, and under a name that nobody has foreseen.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(token)
        Path(file.name).replace(path)
    except OSError as error:
        raise _not_written(path, error) from None
    return record


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make the folder of such tokens, and have it to oneself while the context is entered: others wait.

    Raises:
        ConfigurationError: it cannot be made, or is not to be had.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        taken = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _not_written(folder, error) from None
    try:
        fcntl.flock(taken, fcntl.LOCK_EX)
        yield
    finally:
        os.close(taken)


def _not_written(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the token of this service cannot be written to {path}: {error.strerror or error}; point JOBQ_HOME to a"
        " folder of yours, or let everyone on this machine in with --no-token"
    )


async def revoke(store: Servable, token_id: str) -> TokenRecord | None:
    """Delete a token; return what it was, None = there is none of this id."""
    found: list[TokenRecord] = []

    def remove(known: list[TokenRecord]) -> list[TokenRecord]:
        found[:] = [record for record in known if record.id == token_id]
        return [record for record in known if record.id != token_id]

    await _change(store, remove)
    return found[0] if found else None


async def _change(store: Servable, change: Callable[[list[TokenRecord]], list[TokenRecord]]) -> None:
    def changed(value: bytes | None) -> bytes | None:
        known = _records_of(value)
        wanted = change(list(known))
        return None if wanted == known else json.dumps({"tokens": [asdict(each) for each in wanted]}).encode()

    await change_document(store, _DOCUMENT, changed)


def _records_of(value: bytes | None) -> list[TokenRecord]:
    if value is None:
        return []
    try:
        return [
            TokenRecord(**(fields | {"scopes": tuple(fields["scopes"]), "queues": tuple(fields["queues"])}))
            for fields in json.loads(value)["tokens"]
        ]
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(
            "the tokens in the database cannot be read: they are of a newer jobq, or spoilt"
        ) from None
