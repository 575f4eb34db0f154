"""Foreign text for people: what could move a cursor, hide or reorder characters is written as an escape."""

import re
from typing import Final

# C0, DEL and C1 controls, lone surrogates; and what Unicode lets move, hide or reorder text: bidirectional marks, zero
# widths, separators of lines, fillers, tags.
_INVISIBLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff"
    "\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SHORT_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNDECODABLE: Final = range(0xDC80, 0xDD00)  # a byte that was no UTF-8, as os.fsdecode keeps it


def visible(text: str) -> str:
    """Return the text with everything that could move a cursor, hide or reorder characters written as an escape."""
    return _INVISIBLE.sub(_escape, text)


def visible_bytes(data: bytes) -> str:
    """Return bytes of unknown make as one line of text."""
    return visible(data.decode("utf-8", "surrogateescape"))


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if code in _UNDECODABLE:
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT_ESCAPES.get(character) or character.encode("unicode_escape", "surrogatepass").decode()
