"""The template of `fanout`: a shell command with fields, each value quoted so that it stays one word of text.

A field stands where a word, or a part of one, may stand: `--id={id}`, `./{name}`. Within quotes the quoting would be
undone, so it is refused there. `{{` and `}}` are braces; `${NAME}`, and braces around anything but a name, are left to
the shell.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from jobq.errors import JobqError, MalformedTask

_PIECE: Final = re.compile(r"\{\{|\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}|\\.|.", re.DOTALL)
_ENDS_WORD: Final = frozenset(" \t\n;|&()<>")
_QUOTES: Final = frozenset("'\"`")
_UNDOES_QUOTING: Final = re.compile(r"(?<!<)<<(?!<)|\$'")


class InvalidTemplate(JobqError):
    """The template cannot be filled in safely; the message says where and what to write instead."""

    exit_code = 2


@dataclass(frozen=True)
class _Field:
    name: str
    begins_word: bool  # then a value that begins with a dash could pass for an option
    after_dashes: bool  # a `--` stands before it in the same command


class CommandTemplate:
    """A command to be filled in.

    Args:
        text: of the template.
        fields: the names that it may hold.

    Raises:
        InvalidTemplate: it has an unknown field, none at all, or one within quotes.
    """

    def __init__(self, text: str, fields: "frozenset[str] | None" = None) -> None:
        self.text = text
        self._parts: list[str | _Field] = list(_parts(text))
        self.names = {part.name for part in self._parts if isinstance(part, _Field)}
        if not self.names:
            raise InvalidTemplate(f"the template has no field, so all tasks would be the same: {text!r}")
        if fields is not None:
            self.check(fields)

    def check(self, fields: "frozenset[str] | set[str]") -> None:
        """Raise InvalidTemplate unless all its fields are among these."""
        if unknown := sorted(self.names - fields):
            raise InvalidTemplate(
                f"there is no field {{{unknown[0]}}}; there are: {', '.join(sorted(fields))}. Braces that are the"
                f" shell's are written twice: {{{{{unknown[0]}}}}}"
            )

    def filled(self, values: Mapping[str, "str | list[str]"]) -> str:
        """Return the command; a list becomes several words.

        Raises:
            MalformedTask: a value holds a NUL, or begins with a dash where it could pass for an option.
        """
        return "".join(part if isinstance(part, str) else _word(part, values[part.name]) for part in self._parts)


class _Scanner:
    """Where in a shell command one is: within quotes, in a comment, at the beginning of a word, behind a `--`."""

    def __init__(self) -> None:
        self.quote = ""
        self.is_comment = False
        self.after_dashes = False
        self.begins_word = True  # also behind empty quotes, and behind fields, whose values may be empty
        self._word = ""

    def take(self, piece: str) -> None:
        """Go on by one character, or one that a backslash stands before."""
        if self.quote:
            # Within single quotes a backslash is nothing special.
            if piece == self.quote or (self.quote == "'" and piece.endswith("'")):
                self.quote = ""
            else:
                self._extend(piece)
        elif self.is_comment:
            self.is_comment = not piece.endswith("\n")
        elif piece in _ENDS_WORD:
            self.after_dashes = piece in " \t" and (self.after_dashes or self._word == "--")
            self.begins_word, self._word = True, ""
        elif piece == "#" and not self._word:
            self.is_comment = True
        elif piece in _QUOTES:
            self.quote = piece
            self._word += piece
        else:
            self._extend(piece)

    def _extend(self, piece: str) -> None:
        self._word += piece
        self.begins_word = False

    def field(self, name: str, piece: str) -> _Field:
        """Return the field that stands here; raises InvalidTemplate where its value could not be quoted."""
        if self.quote or self.is_comment:
            raise InvalidTemplate(
                f"{piece} stands within {'a comment' if self.is_comment else f'quotes ({self.quote})'}: write it"
                f" without, as in --{name}={piece}; its value is quoted as one word"
            )
        self._word += piece
        return _Field(name, self.begins_word, self.after_dashes)


def _parts(text: str) -> Iterator[str | _Field]:
    if _UNDOES_QUOTING.search(text):
        raise InvalidTemplate("here-documents (<<) and $'...' would undo the quoting of fields; write it without")
    scanner = _Scanner()
    for match in _PIECE.finditer(text):
        piece, name = match[0], match[1]
        if name is not None:
            yield scanner.field(name, piece)
        else:
            plain = {"{{": "{", "}}": "}"}.get(piece, piece)
            scanner.take(plain)
            yield plain


def _word(field: _Field, value: str | list[str]) -> str:
    if isinstance(value, list):
        return " ".join(_word(field, one) for one in value)
    if "\0" in value:
        raise MalformedTask(f"its value holds a NUL, which no argument of a program can: {value!a}"[:300], field.name)
    if value.startswith("-") and field.begins_word and not field.after_dashes:
        raise MalformedTask(
            f"its value begins with a dash and could pass for an option: {value!a}"[:300]
            + f"; write `-- {{{field.name}}}`, `./{{{field.name}}}` or `--option={{{field.name}}}`",
            field.name,
        )
    return shlex.quote(value)
