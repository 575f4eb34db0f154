r"""Messages of wire version 3: the work as its producer wrote it, with what changes, and signatures, beside it.

    {"version":3,"work":"{\"id\":...}","state":{"epoch":0,...},"signatures":[{"keyid":"...","sig":"..."}]}

`work` is JSON within a string: requeues, dead letters, redrives and copies keep its text, so that what was signed stays
what was signed. A signature is DSSE's (https://github.com/secure-systems-lab/dsse): over the pre-authentication
encoding of a type and that text. `state` is not signed; it holds the counters.

`"ledger":"s7~5f0c12ab"` beside it names the book in which a Storage Queue keeps what becomes of the task, from before
it is queued until it has ended: only who writes that book may run it.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final

from jobq.errors import MalformedTask
from jobq.formats import strict_json, task_ids
from jobq.formats.lazy_dataclass import dataclass

VERSION: Final = 3
PAYLOAD_TYPE: Final = "application/vnd.jobq.work+json"
STATE: Final = frozenset({"epoch", "generation", "counters", "not_before"})
BOOKKEEPING: Final = frozenset({"batch", "params"})  # of the queue's, beside the body: no worker needs it
_BOOK: Final = re.compile(rf"\.?(?P<batch>{task_ids.BATCH.pattern})(?:~[0-9a-f]{{1,32}})?")
AT_ITS_END: Final = "."  # begins the name of the book of what is run when a batch has finished; no batch's own does
_MOST_SIGNATURES: Final = 8
_MOST_ROUNDS: Final = 10**9
_LONGEST_KEY_ID: Final = 100
FAR_FUTURE_SECONDS: Final = 253_402_300_799.0  # 9999-12-31, the end of datetime


@dataclass(frozen=True)
class Signature:
    """One of a work's signatures.

    Attributes:
        key_id: names the key; a hint, which nothing is believed for.
        value: what the key's algorithm made.
    """

    key_id: str
    value: bytes


@dataclass(frozen=True)
class Audience:
    """For whom work was signed.

    Attributes:
        location: what the queues are in, as its producer names it.
        queues: in which of them it may run.
    """

    location: str
    queues: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """The work of a message, as its producer wrote it.

    Attributes:
        text: JSON; may hold secrets (A5).
        id: within that text.
        signatures: of that text; none for work that nobody signed.
        audience: None = it names none.
        not_before, not_after: wall time in seconds since the epoch; None = unlimited.
        round: of the batch after which it is run (`jobq.batches`): its id ends with that; None = it is of none.
        ledger: the book in which its queue keeps what becomes of it: a batch's name, `~` and which batch of that name
            it is, with AT_ITS_END before it for what is run at its end; None = in none.
    """

    text: str = field(repr=False)
    id: str
    signatures: tuple[Signature, ...] = ()
    audience: Audience | None = None
    not_before: float | None = None
    not_after: float | None = None
    round: int | None = None
    ledger: str | None = None

    @property
    def first_id(self) -> str:
        """The id of its task."""
        return self.id if self.round is None else f"{self.id}.{self.round}"


def pre_authentication_encoding(text: str) -> bytes:
    """Return the bytes that are signed: of the type and of the text, each with its length (DSSE version 1)."""
    kind, body = PAYLOAD_TYPE.encode(), text.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


def envelope(fields: Mapping[str, Any]) -> tuple[str, tuple[Signature, ...]]:
    """Return the text of the work and its signatures, of a decoded message; raises MalformedTask."""
    if unknown := sorted(fields.keys() - {"version", "work", "state", "signatures", "ledger"}):
        raise MalformedTask(f"unknown field in version {VERSION}", ascii(unknown[0])[:42])
    text = fields.get("work")
    if not isinstance(text, str):
        raise MalformedTask("must be a string", "work")
    signatures = fields.get("signatures", [])
    if not isinstance(signatures, list) or len(signatures) > _MOST_SIGNATURES:
        raise MalformedTask(f"must be an array, of {_MOST_SIGNATURES} at most", "signatures")
    return text, tuple(_signature(given, f"signatures.{number}") for number, given in enumerate(signatures))


def work_in(text: str, signatures: tuple[Signature, ...] = ()) -> tuple[Work, dict[str, Any]]:
    """Return the work in a text, and what `Task` takes of it; raises MalformedTask."""
    fields = strict_json.loads(text.encode())
    if not isinstance(fields, dict):
        raise MalformedTask("must hold a JSON object", "work")
    if stray := sorted(fields.keys() & (STATE - {"not_before"} | BOOKKEEPING | {"work"})):
        raise MalformedTask("is no part of work", f"work.{stray[0]}")
    if not isinstance(id_ := fields.get("id"), str):
        raise MalformedTask("must be a string", "work.id")  # a default would give it another name at each delivery
    work = Work(
        text=text,
        id=id_,
        signatures=signatures,
        audience=_audience(fields.pop("audience", None)),
        not_before=_moment(fields.pop("not_before", None), "work.not_before"),
        not_after=_moment(fields.pop("not_after", None), "work.not_after"),
    )
    return work, fields


def read(fields: Mapping[str, Any]) -> tuple[Work, dict[str, Any], dict[str, Any]]:
    """Return the work of a decoded message, what `Task` takes of it, and its state; raises MalformedTask."""
    work, own = work_in(*envelope(fields))
    if (ledger := fields.get("ledger")) is not None:
        if not isinstance(ledger, str) or not is_book(ledger):
            raise MalformedTask("names no batch", "ledger")
        work = replace(work, ledger=ledger)
        if (batch := batch_of_book(ledger)) is not None:
            own["batch"] = batch
    state = fields.get("state", {})
    if not isinstance(state, dict):
        raise MalformedTask("must be an object", "state")
    number = state.get("round")
    if number is not None:
        if type(number) is not int or not 0 < number < _MOST_ROUNDS:
            raise MalformedTask("is no number of a round", "state.round")
        work = replace(work, round=number)
        own["id"] = work.first_id
        state = {name: value for name, value in state.items() if name != "round"}
    return work, own, state


def is_book(ledger: str) -> bool:
    """Return whether a text names a book; see `Work.ledger`."""
    return _BOOK.fullmatch(ledger) is not None


def batch_of_book(ledger: str) -> str | None:
    """Return the batch whose tasks a book keeps; None = it keeps what is run when one has finished."""
    return None if ledger.startswith(AT_ITS_END) else ledger.partition("~")[0]


def write(work: Work, state: bytes) -> bytes:
    """Return a message.

    Args:
        work: kept as it is.
        state: a JSON object.
    """
    if work.round is not None:
        state = state[:-1] + b',"round":%d}' % work.round
    text = json.dumps(work.text, ensure_ascii=False).encode()
    signatures = [
        {"keyid": signature.key_id, "sig": base64.b64encode(signature.value).decode()} for signature in work.signatures
    ]
    end = b',"signatures":' + strict_json.dumps(signatures) if signatures else b""
    if work.ledger is not None:
        end += b',"ledger":' + strict_json.dumps(work.ledger)
    return b'{"version":%d,"work":%b,"state":%b%b}' % (VERSION, text, state, end)


def _signature(given: Any, where: str) -> Signature:
    if not isinstance(given, dict) or given.keys() != {"keyid", "sig"}:
        raise MalformedTask("must be an object with keyid and sig", where)
    if not all(isinstance(value, str) for value in given.values()):
        raise MalformedTask("must hold strings", where)
    if len(given["keyid"]) > _LONGEST_KEY_ID:
        raise MalformedTask(
            f"has {len(given['keyid'])} characters, at most {_LONGEST_KEY_ID} are read", f"{where}.keyid"
        )
    try:
        return Signature(given["keyid"], base64.b64decode(given["sig"], validate=True))
    except (binascii.Error, ValueError):
        raise MalformedTask("must be base64", f"{where}.sig") from None


def _audience(given: Any) -> Audience | None:
    if given is None:
        return None
    if not isinstance(given, dict) or given.keys() != {"location", "queues"}:
        raise MalformedTask("must be an object with location and queues", "work.audience")
    location, queues = given["location"], given["queues"]
    if not isinstance(location, str) or not isinstance(queues, list) or not all(isinstance(q, str) for q in queues):
        raise MalformedTask("must hold a string and an array of strings", "work.audience")
    return Audience(location, tuple(queues))


def _moment(given: Any, where: str) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= FAR_FUTURE_SECONDS:
        raise MalformedTask("must be a time in seconds since 1970", where)
    return float(given)
