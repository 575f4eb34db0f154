"""The template of `fanout`: a shell command with fields, each value of which is one word of text, whatever it holds.

A value is never part of the shell's text: it is a variable of the task's environment, and its field becomes
`"$FANOUT_x"`. A field stands where a word, or a part of one, may stand: `--id={id}`, `./{name}`. `{{` and `}}` are
braces; `${NAME}`, and braces around anything but a name, are left to the shell.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from jobq.errors import MalformedTask
from jobq.submit.shell_template_check import FIELD, InvalidTemplate, Scanner, refuse_what_evaluates

__all__ = ["CommandTemplate", "Filled", "InvalidTemplate"]

_PIECE: Final = re.compile(rf"\{{\{{|\}}\}}|(?P<field>{FIELD})|\\.|.", re.DOTALL)
# execve(2), MAX_ARG_STRLEN: what the kernel takes as one argument or one NAME=VALUE, with its NUL.
_MOST_BYTES: Final = 128 * 1024


@dataclass(frozen=True)
class Filled:
    """What a task gets of a record.

    Attributes:
        command: for the shell.
        env: the values, by the variables that the command names.
    """

    command: str
    env: Mapping[str, str]


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
        InvalidTemplate: it has an unknown field, none at all, or one where it would not be one word of text.
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

    def filled(self, values: Mapping[str, "str | list[str]"]) -> Filled:
        """Return the command and its variables; a list becomes several words.

        Raises:
            MalformedTask: a value holds a NUL, is too long, or begins with a dash where it could pass for an option.
        """
        env: dict[str, str] = {}
        command = "".join(
            part if isinstance(part, str) else _words(part, values[part.name], env) for part in self._parts
        )
        if len(command.encode()) >= _MOST_BYTES:
            raise MalformedTask(
                f"the command has {len(command)} characters, too many for a program; use a smaller --batch"
            )
        return Filled(command, env)


def _parts(text: str) -> Iterator[str | _Field]:
    refuse_what_evaluates(_PIECE.sub(lambda match: _plain(match[0]), text))
    scanner = Scanner()
    for match in _PIECE.finditer(text):
        piece = match[0]
        if match["field"] is not None:
            name = piece[1:-1]
            scanner.field(name, piece)
            yield _Field(name, scanner.begins_word, scanner.after_dashes)
        else:
            scanner.take(_plain(piece))
            yield _plain(piece)
    scanner.end()


def _plain(piece: str) -> str:
    return {"{{": "{", "}}": "}"}.get(piece, piece)


def _words(field: _Field, value: str | list[str], env: dict[str, str]) -> str:
    if not isinstance(value, list):
        return _word(field, f"FANOUT_{field.name}", value, env)
    # Short names: the kernel takes 128 KiB of command, and a batch has up to 10 000 of them.
    return " ".join(_word(field, f"ITEM_{number}", one, env) for number, one in enumerate(value, 1))


def _word(field: _Field, variable: str, value: str, env: dict[str, str]) -> str:
    if "\0" in value:
        raise MalformedTask(f"its value holds a NUL, which no argument of a program can: {value!a}"[:300], field.name)
    if (size := len(variable) + len(value.encode(errors="surrogatepass")) + 2) > _MOST_BYTES:
        raise MalformedTask(f"its value has {size} bytes, and a program takes {_MOST_BYTES} at most", field.name)
    if value.startswith("-") and field.begins_word and not field.after_dashes:
        raise MalformedTask(
            f"its value begins with a dash and could pass for an option: {value!a}"[:300]
            + f"; write `-- {{{field.name}}}`, `./{{{field.name}}}` or `--option={{{field.name}}}`",
            field.name,
        )
    env[variable] = value
    return f'"${variable}"'
