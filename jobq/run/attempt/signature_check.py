"""Whether a task was signed, for this queue and for now, by somebody whom this worker trusts (rules.md 3, A1).

Checked in this order, before any of the work is believed: envelope, key, signature, audience, time. What is certain
goes to the dead letters, with its original bytes; what is this worker's view alone is left to others (`allowed`).
"""

import hashlib
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from jobq.errors import ConfigurationError, MalformedTask
from jobq.formats import strict_json
from jobq.formats.wire_v3 import VERSION, Work, envelope, pre_authentication_encoding, read
from jobq.run.attempt import allowed
from jobq.run.attempt.retry import Reason
from jobq.settings import Settings
from jobq.task import Task

if TYPE_CHECKING:
    from collections.abc import Collection

    from jobq.signing.keys import TrustedKey, TrustedKeys

_MOST_REMEMBERED: Final = 100_000  # works that have succeeded here
_MOST_WARNINGS: Final = 100  # of different kinds
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refused:
    """Why a task is not run.

    Attributes:
        why: for people.
        reason: of the dead letter; None = another worker may run it, or this one later.
        wait: until it may be run, where that is known.
        kind: what it has in common with others, for a warning; empty = the reason, or why.
    """

    why: str
    reason: Reason | None = None
    wait: timedelta | None = None
    kind: str = ""


@dataclass(frozen=True)
class Verified:
    """Work whose signature holds, here and now.

    Attributes:
        work: exactly what was signed.
        key: by whom.
    """

    work: Work
    key: "TrustedKey"


class SignatureCheck:
    """Checks for one worker.

    Args:
        settings: the mode, and the file of the keys.
        locations: what the place of the queue is called.
        queue: its name.
    """

    def __init__(self, settings: Settings, locations: "Collection[str]", queue: str) -> None:
        self.mode = settings.require_signed
        self._keys: TrustedKeys | None = None
        if settings.trusted_keys is not None:
            from jobq.signing import keys  # noqa: PLC0415 - pydantic is for those who sign

            self._keys = keys.TrustedKeys(settings.trusted_keys)
        self._locations = locations
        self._queue = queue
        self._warned: set[str] = set()
        self._succeeded: dict[bytes, None] = {}

    def check(self) -> None:
        """Raise ConfigurationError where signatures are wanted and the keys cannot be read."""
        if self.mode == "off":
            return
        if self._keys is None:
            raise ConfigurationError(
                f"JOBQ_REQUIRE_SIGNED={self.mode} needs JOBQ_TRUSTED_KEYS, the file with the keys whose signatures"
                " count; `jobq keys trust` writes it"
            )
        try:
            self._keys.read()
        except ConfigurationError as error:
            raise ConfigurationError(f"JOBQ_TRUSTED_KEYS: {error}") from None

    def verify(self, id_: str, body: bytes, now: float) -> Verified | Refused | None:
        """Return what was signed, or why it is not to be run; None where that is not asked, or it is no task at all.

        Args:
            id_: of the task.
            body: the message; nothing that was made of it before is believed.
            now: wall time in seconds since the epoch.
        """
        if self.mode == "off":
            return None
        found = self._verified(body, now)
        if isinstance(found, Verified) and _digest(found.work) in self._succeeded:
            found = Refused("this worker has done exactly this work already", Reason.REPLAYED)
        return self._if_it_counts(id_, found) if isinstance(found, Refused) else found

    def compare(self, task: Task, verified: Verified | None) -> Refused | None:
        """Return why a task is not run that was made of a message: something else was verified, or its key may not."""
        if self.mode == "off" or (self.mode == "warn" and verified is None):  # why is logged
            return None
        if verified is None or task.work is None or task.work.text != verified.work.text:
            return self._if_it_counts(task.id, Refused("nobody has signed it", Reason.UNSIGNED))
        if (why := allowed.by_key(task, verified.key)) is not None:
            return self._if_it_counts(task.id, Refused(why))
        return None

    def succeeded(self, task: Task) -> None:
        """Remember that work has been done here, so that the same bytes are not run once more."""
        if self.mode == "off" or task.work is None:
            return
        self._succeeded[_digest(task.work)] = None
        if len(self._succeeded) > _MOST_REMEMBERED:
            del self._succeeded[next(iter(self._succeeded))]

    def _if_it_counts(self, id_: str, refused: Refused) -> Refused | None:
        """Return it, or only log, the first of each kind, what `on` would do."""
        if self.mode == "on":
            return refused
        kind = refused.reason or refused.kind or refused.why
        if kind not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(kind)
            would = f"make it a dead letter ({refused.reason})" if refused.reason else "leave it to others"
            _log.warning("task %s: %s; JOBQ_REQUIRE_SIGNED=on would %s", id_, refused.why, would)
        return None

    def _verified(self, body: bytes, now: float) -> Verified | Refused | None:
        try:
            fields = strict_json.loads(body)
            if not isinstance(fields, dict):
                return None
            text, signatures = envelope(fields) if fields.get("version") == VERSION else ("", ())
            if not signatures:
                return Refused("nobody has signed it", Reason.UNSIGNED)
        except MalformedTask:
            return None  # what decodes it says what is wrong
        try:
            trusted = {} if self._keys is None else self._keys.read()
        except ConfigurationError as error:
            return Refused(f"JOBQ_TRUSTED_KEYS cannot be read: {error}")
        refused: Refused | None = None
        for signature in signatures:
            if (key := trusted.get(signature.key_id)) is None:
                continue
            found = self._of_key(key, now)
            if found is None and not key.has_signed(pre_authentication_encoding(text), signature.value):
                found = Refused(f"the signature by {key.id} is not of this work", Reason.BAD_SIGNATURE)
            if found is None:
                return self._in_time(fields, key, now)
            refused = refused or found
        names = ", ".join(ascii(signature.key_id)[1:-1] for signature in signatures)
        unknown = Refused(f"it was signed by {names}, which JOBQ_TRUSTED_KEYS does not hold", kind="an unknown key")
        return refused or unknown

    def _of_key(self, key: "TrustedKey", now: float) -> Refused | None:
        state = key.state(datetime.fromtimestamp(now, UTC))
        if state == "revoked":
            return Refused(f"it was signed by {key.id}, which is revoked", Reason.REVOKED_KEY)
        if state == "expired":
            return Refused(f"it was signed by {key.id}, which counts no longer", Reason.EXPIRED)
        if state != "valid":
            return Refused(f"it was signed by {key.id}, which does not count yet")
        if not any(fnmatchcase(self._queue, pattern) for pattern in key.queues):
            return Refused(f"it was signed by {key.id}, which is not trusted for queue {self._queue}")
        return None

    def _in_time(self, fields: dict[str, Any], key: "TrustedKey", now: float) -> Verified | Refused | None:
        try:
            work, _, _ = read(fields)
        except MalformedTask:
            return None
        audience = work.audience
        if audience is None or audience.location not in self._locations or self._queue not in audience.queues:
            where = "no queue" if audience is None else f"{audience.location} and {', '.join(audience.queues)}"
            return Refused(
                f"it was signed for {where}, not for {self._queue} at {' or '.join(self._locations)}; where that is one"
                " place with two names, set JOBQ_AUDIENCE for pushing and working",
                Reason.WRONG_QUEUE,
            )
        if work.not_after is None or work.not_after < now:
            over = "" if work.not_after is None else f" since {datetime.fromtimestamp(work.not_after, UTC):%F %T} UTC"
            return Refused(f"the time for which it was signed is over{over}: push it again", Reason.EXPIRED)
        if work.not_before is not None and work.not_before > now:
            return Refused("it is not due yet", wait=timedelta(seconds=min(work.not_before - now, 3600.0)))
        return Verified(work, key)


def _digest(work: Work) -> bytes:
    """Return what one work is known by; the rest of its id is not signed."""
    return hashlib.blake2b(work.text.encode(), digest_size=16).digest()
