"""What the text of a Storage Queue message holds: a body, and beside it a checkpoint or the story of a dead letter.

A body that XML can carry as it is stays readable text, as other tools write and expect it; any other is base64 (which
some tools write always, so it is read wherever it is well-formed). What stands beside a body is one line before it:

    #jobq {"checkpoint": "step 7"}
    {"version": 2, ...}
"""

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from jobq.errors import MalformedTask
from jobq.formats import strict_json
from jobq.formats.wire_v3 import is_book

MAX_TEXT_BYTES: Final = 64 * 1024  # of the text as it stands in the request
# What a message may still grow by: counters, a generation, a date. Nothing may push it over the limit later.
HEADROOM_BYTES: Final = 1024
MAX_COUNT: Final = 2**31 - 1  # as of a task's own counters
_MARK: Final = "#jobq "
# XML 1.0, production 2, without the carriage return, which a parser turns into a line feed.
_NO_XML: Final = re.compile("[^\t\n\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class MessageNotes:
    """What jobq notes of a message beside its body; all optional.

    Attributes:
        checkpoint: the last accepted one.
        before: deliveries of this task in messages before this one; a redrive begins a new message (S3).
        id: of a message that is not a task, and was redriven; of a task whose body is in a blob.
        dead: the fields of a dead letter.
        blob: names the blob that holds the body; the message's own is empty then.
        origin: the service's id of the message as which this was pushed, in copies of it: two pushes of one id are two
            tasks, which nothing else distinguishes.
        changed: the fields of a task in a blob that requeues change; they count instead of those in the blob.
        ledger: the book in which a task in a blob is kept, also where the blob is lost; empty = in none.
        born: of such a task: when it was made, wall time in seconds since the epoch.
    """

    checkpoint: str | None = None
    before: int = 0
    id: str = ""
    dead: dict[str, Any] | None = None
    blob: str = ""
    origin: str = ""
    changed: dict[str, Any] | None = None
    ledger: str = ""
    born: float = 0.0

    def line(self) -> str:
        """Return the line that stands for this; empty for nothing."""
        fields = {name: value for name, value in vars(self).items() if value != vars(NOTHING)[name]}
        # ASCII alone, so that nothing in the line can end it or be illegal in XML.
        return f"{_MARK}{json.dumps(fields)}\n" if fields else ""

    @classmethod
    def read(cls, line: str) -> "MessageNotes | None":
        """Return what a line says; None for one that `line` did not write."""
        try:
            fields = strict_json.loads(line.removeprefix(_MARK).encode())
        except (MalformedTask, UnicodeEncodeError):
            return None
        if not isinstance(fields, dict) or any(type(value) is not _KINDS.get(name) for name, value in fields.items()):
            return None
        if fields.get("ledger") and not is_book(fields["ledger"]):
            return None
        if not 0 <= fields.get("before", 0) <= MAX_COUNT:
            return None
        return cls(**fields)


NOTHING: Final = MessageNotes()
_KINDS: Final = {
    "checkpoint": str,
    "before": int,
    "id": str,
    "dead": dict,
    "blob": str,
    "origin": str,
    "changed": dict,
    "ledger": str,
    "born": float,
}


@dataclass(frozen=True)
class MessageContent:
    """A message taken apart: the bytes that somebody queued, and what jobq notes beside them."""

    body: bytes
    beside: MessageNotes = NOTHING

    def text(self) -> str:
        """Return the message as it is stored."""
        return self.beside.line() + text_of(self.body)

    @classmethod
    def read(cls, text: str) -> "MessageContent":
        """Take a message apart; what is not ours, or broken, is all body."""
        line, newline, rest = text.partition("\n")
        beside = MessageNotes.read(line) if newline and line.startswith(_MARK) else None
        return cls(body_of(text)) if beside is None else cls(body_of(rest), beside)


def text_of(body: bytes) -> str:
    """Return the text that stands for a body; `body_of` is its inverse."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    # What would be read as something else than it is, or not at all, is armoured.
    if not text or _NO_XML.search(text) or text.startswith(_MARK) or _from_base64(text) is not None:
        return base64.b64encode(body).decode()
    return text


def body_of(text: str) -> bytes:
    """Return the body that a text stands for; never fails."""
    decoded = _from_base64(text)
    return text.encode(errors="surrogatepass") if decoded is None else decoded


def size_of(text: str) -> int:
    """Return how many bytes of a message's limit a text takes: UTF-8, escaped for XML."""
    return len(text.encode()) + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))


def _from_base64(text: str) -> bytes | None:
    if len(text) % 4 or not text.isascii():
        return None
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return decoded if base64.b64encode(decoded).decode() == text else None
