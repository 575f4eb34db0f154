"""Keys that sign work, and the keys whose signatures a worker trusts: two kinds of files, both JSON.

An Ed25519 key has two halves: who signs has the secret one, workers have the public one, so that no worker can sign. An
HMAC key is one secret, for installations with one owner: each worker that checks with it could sign with it as well.
The algorithm comes from the file, never from a message.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from jobq.errors import ConfigurationError

_SEED_BYTES: Final = 32  # of both algorithms
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_MOST_BYTES: Final = 1024 * 1024
Algorithm = Literal["ed25519", "hmac-sha256"]


def _from_base64(given: object) -> object:
    if not isinstance(given, str):
        return given
    try:
        value = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64") from None
    if len(value) != _SEED_BYTES:
        raise ValueError(f"must be {_SEED_BYTES} bytes")
    return value


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


KeyBytes = Annotated[bytes, BeforeValidator(_from_base64), PlainSerializer(_to_base64, when_used="json")]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrustedKey(_File):
    """A key whose signatures a worker trusts.

    Attributes:
        id: what signatures name it by.
        algorithm: that of all its signatures.
        key: the public half of an Ed25519 key; of HMAC the secret itself.
        queues: patterns of the names of queues whose tasks it may sign.
        not_before, not_after: when its signatures count, by the worker's clock; None = without limit.
        commands, calls, variables: all that its tasks may run and bring, as JOBQ_ALLOW_* list it; none = anything.
        revoked: when it was; nothing that it has signed is run any more. None = it is not.
        comment: whose it is.
    """

    id: Annotated[str, Field(min_length=1, max_length=100)]
    algorithm: Algorithm
    key: Annotated[KeyBytes, Field(repr=False)]
    queues: tuple[str, ...] = ("*",)
    not_before: AwareDatetime | None = None
    not_after: AwareDatetime | None = None
    commands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    revoked: AwareDatetime | None = None
    comment: str = ""

    @model_validator(mode="after")
    def _is_named_by_its_key(self) -> Self:
        _check_name(self.algorithm, self.id, self.key)
        for entry in self.commands:
            try:
                re.compile(entry if entry.startswith("^") else "")
            except re.error as error:
                raise ValueError(f"the command {entry} is no regular expression: {error}") from None
        return self

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Return whether a signature is this key's, of this message."""
        if self.algorithm == "hmac-sha256":
            return hmac.compare_digest(hmac.digest(self.key, message, "sha256"), signature)
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - heavy, and for signed tasks alone
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - as above

        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def state(self, now: datetime) -> str:
        """Return `valid`, `revoked`, `expired` or `not yet valid`."""
        if self.revoked is not None:
            return "revoked"
        if self.not_after is not None and self.not_after < now:
            return "expired"
        return "not yet valid" if self.not_before is not None and self.not_before > now else "valid"


class SigningKey(_File):
    """A key that signs.

    Attributes:
        id: what its signatures name it by.
        algorithm: how it signs.
        secret: the seed of an Ed25519 key, or the key of HMAC.
    """

    id: str
    algorithm: Algorithm
    secret: Annotated[KeyBytes, Field(repr=False)]

    @model_validator(mode="after")
    def _is_named_by_its_key(self) -> Self:
        _check_name(self.algorithm, self.id, b"" if self.algorithm == "hmac-sha256" else _public_half(self.secret))
        return self

    @classmethod
    def new(cls, algorithm: Algorithm = "ed25519") -> Self:
        """Return a new one, at random."""
        secret = secrets.token_bytes(_SEED_BYTES)
        if algorithm == "hmac-sha256":
            return cls(id=f"hmac-{secrets.token_hex(8)}", algorithm=algorithm, secret=secret)
        return cls(id=_id_of(_public_half(secret)), algorithm=algorithm, secret=secret)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the key in a file; raises ConfigurationError, also for a file that others may read."""
        try:
            return cls.model_validate_json(_read(path, forbidden=_OTHERS))
        except ValidationError as error:
            raise _unreadable(path, error) from None

    def sign(self, message: bytes) -> bytes:
        """Return its signature of a message."""
        if self.algorithm == "hmac-sha256":
            return hmac.digest(self.secret, message, "sha256")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - as above

        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(message)

    def trusted(self) -> TrustedKey:
        """Return what workers need to trust it."""
        key = self.secret if self.algorithm == "hmac-sha256" else _public_half(self.secret)
        return TrustedKey(id=self.id, algorithm=self.algorithm, key=key)

    def write_new(self, path: Path) -> None:
        """Write it to a file that is not there yet, for this user alone; raises ConfigurationError."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(self.model_dump_json(indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigurationError(f"{path}: the key was not written: {error.strerror}") from None


class KeyFile(_File):
    """The file that JOBQ_TRUSTED_KEYS names.

    Attributes:
        keys: each id at most once.
    """

    keys: tuple[TrustedKey, ...] = ()

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        ids = [key.id for key in self.keys]
        if len(set(ids)) != len(ids):
            raise ValueError("two keys have one id")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what a file holds; raises ConfigurationError, also for one that others may write."""
        text = _read(path, forbidden=_OTHERS_WRITE)
        try:
            found = cls.model_validate_json(text)
        except ValidationError as error:
            raise _unreadable(path, error) from None
        if any(key.algorithm == "hmac-sha256" for key in found.keys):
            _read(path, forbidden=_OTHERS)
        return found

    def write(self, path: Path) -> None:
        """Write it in place of what is there, all or nothing; raises ConfigurationError.

        Who may read the former file may read this one; a new one is this user's alone.
        """
        path = path.resolve()
        try:
            former = path.stat() if path.exists() else None
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
                file.write(self.model_dump_json(indent=2, exclude_defaults=True) + "\n")
                file.flush()
                if former is not None:
                    os.fchown(file.fileno(), former.st_uid, former.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(former.st_mode))
                os.fsync(file.fileno())
            Path(file.name).replace(path)
        except OSError as error:
            raise ConfigurationError(f"{path}: was not written: {error.strerror}") from None


class TrustedKeys:
    """The keys in a file, read again when it has changed.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, ...] = ()
        self._keys: dict[str, TrustedKey] = {}

    def read(self) -> dict[str, TrustedKey]:
        """Return the keys by their ids; raises ConfigurationError: what cannot be read trusts nobody."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise ConfigurationError(f"{self._path}: {error.strerror}") from None
        version = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if version != self._version:
            self._keys = {key.id: key for key in KeyFile.read(self._path).keys}
            self._version = version
        return self._keys


def _check_name(algorithm: Algorithm, id_: str, public: bytes) -> None:
    if algorithm == "ed25519" and id_ != _id_of(public):
        raise ValueError(f"the id of this key is {_id_of(public)}")


def _id_of(public: bytes) -> str:
    return f"ed25519-{hashlib.sha256(public).hexdigest()[:16]}"


def _public_half(seed: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - as above

    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def _read(path: Path, *, forbidden: int) -> bytes:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(_MOST_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    if found.st_uid not in (0, os.getuid()):
        raise ConfigurationError(f"{path}: belongs to another user, who could put other keys into it")
    if found.st_mode & forbidden:
        can = "read" if forbidden & stat.S_IRGRP else "change"
        raise ConfigurationError(f"{path}: others may {can} it; mend that with: chmod go-rwx {path}")
    return text


def _unreadable(path: Path, error: ValidationError) -> ConfigurationError:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return ConfigurationError(f"{path}: {where or 'the file'}: {first['msg'].removeprefix('Value error, ')}")
