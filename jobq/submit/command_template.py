"""Templates of commands: how the values of a record come into its task, so that none is ever code (rules.md 3, A2).

A command for the shell is never changed: values are variables of the task's environment, `"$PARAM_x"`, and the items
of a batch its arguments, `"$@"`. In an argument vector a field in braces is filled in within its word, `--id={id}`; no
shell looks at it. `{{name}}` there is the text `{name}`; braces around anything but a name stay as they are.
"""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from jobq.errors import JobqError, MalformedTask
from jobq.formats.task_bounds import MAX_ARGUMENT_BYTES

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"


def pieces_of(name: str) -> re.Pattern[str]:
    """Return what matches a field in braces, or the text of one in doubled braces, of names that match `name`."""
    return re.compile(rf"(?P<braces>\{{\{{(?:{name})\}}\}})|\{{(?P<field>{name})\}}")


_NAMED: Final = pieces_of(_NAME)
PREFIX: Final = "PARAM_"  # of the variables
_VARIABLE: Final = re.compile(rf"\$\{{?[#!]?({PREFIX}[A-Za-z0-9_]+)")
_SHOWN: Final = 60  # characters of a word
Values = Mapping[str, str | list[str]]


class InvalidTemplate(JobqError):
    """The template cannot be filled in; the message says what to write instead."""

    exit_code = 2


class Template(Protocol):
    """What a record is put into."""

    @property
    def text(self) -> str:
        """The template, by which another one is known."""
        ...

    def check(self, fields: Collection[str], many: str | None = None) -> None:
        """Raise InvalidTemplate for a template that cannot be filled in with these fields, of which one is a list."""
        ...

    def filled(self, values: Values) -> dict[str, Any]:
        """Return the fields of a task; a list becomes several words.

        Raises:
            MalformedTask: a value holds a NUL, is too long, or begins with a dash where it could pass for an option.
        """
        ...


class ShellTemplate:
    """A command for the shell.

    Args:
        text: of the command.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def check(self, fields: Collection[str], many: str | None = None) -> None:
        """Raise InvalidTemplate for a variable that no record has, and for a field in braces: those are for argv."""
        names = [name for name in fields if name != many and re.fullmatch(_NAME, name)]
        known = {PREFIX + name for name in names}
        for variable in _VARIABLE.findall(self.text):
            if variable not in known:
                there = ", ".join(f"${name}" for name in sorted(known)) + (', and the items are "$@"' if many else "")
                raise InvalidTemplate(f"there is no variable ${variable}; there are: {there}")
        for name in sorted(fields):
            if re.search(rf"(?<!\$)\{{{re.escape(name)}\}}", self.text):
                variable = "$@" if name == many else f"${PREFIX}{name}"
                raise InvalidTemplate(
                    f'{{{name}}} is not filled in within a command for the shell: write "{variable}" there, with the'
                    f" double quotes and braces of the shell written once; or give a program and its arguments after"
                    f" `--`, without -c, where {{{name}}} is filled in"
                )

    def filled(self, values: Values) -> dict[str, Any]:
        """Return the command and its variables; a list becomes its arguments, each a variable as well."""
        env: dict[str, str] = {}
        items: list[str] = []
        for name, value in values.items():
            if not isinstance(value, list):
                if re.fullmatch(_NAME, name):  # no other can be written in a shell
                    env[PREFIX + name] = value
                continue
            for number, item in enumerate(value, 1):
                # Short names: the kernel takes 128 KiB of command, and a batch has up to 10 000 of them.
                env[f"ITEM_{number}"] = item
                items.append(f'"$ITEM_{number}"')
        for variable, one in env.items():
            _check(variable, one, len(variable) + 1)
        command = f"set -- {' '.join(items)}\n{self.text}" if items else self.text
        if len(command.encode()) >= MAX_ARGUMENT_BYTES:
            raise MalformedTask(
                f"the command has {len(command)} characters, too many for a program; use a smaller --batch"
            )
        return {"command": command, "env": env}


class ArgvTemplate:
    """A program and its arguments, run without a shell.

    Args:
        words: with fields.
        piece: what a field looks like; see `pieces_of`.

    Attributes:
        names: of its fields.

    Raises:
        InvalidTemplate: there is no field.
    """

    def __init__(self, words: Sequence[str], piece: re.Pattern[str] = _NAMED) -> None:
        self.text = shlex.join(["--", *words])
        self._piece = piece
        self._words = words
        self.names: Final = frozenset(name for word in words for name in self._fields_in(word))
        self._plain = frozenset(word for word in words if not piece.search(word))
        if not self.names:
            raise InvalidTemplate(f"the template has no field, so all tasks would be the same: {self.text}")

    def check(self, fields: Collection[str], many: str | None = None) -> None:
        """Raise InvalidTemplate unless all its fields are among these, and the list a word of its own."""
        if unknown := sorted(self.names.difference(fields)):
            raise InvalidTemplate(
                f"there is no field {{{unknown[0]}}}; there are: {', '.join(sorted(fields))}. For the text"
                f" {{{unknown[0]}}} write {{{{{unknown[0]}}}}}"
            )
        for word in self._words:
            names = self._fields_in(word)
            if names and re.search(r"\s", word):
                raise InvalidTemplate(
                    f"{{{names[0]}}} stands in a word with white space, {word[:_SHOWN]!a}, which may be a program's"
                    f" text, and the value would be part of that: give {{{names[0]}}} as a word of its own"
                )
            if many in names and word != f"{{{many}}}":
                raise InvalidTemplate(f"{{{many}}} is many words, and must be a word of its own, not {word}")

    def filled(self, values: Values) -> dict[str, Any]:
        """Return the argument vector."""
        argv: list[str] = []
        for word in self._words:
            if word in self._plain:
                argv.append(word)
                continue
            many = values.get(word[1:-1]) if self._piece.fullmatch(word) else None
            if isinstance(many, list):
                argv += [self._word(word, {**values, word[1:-1]: one}) for one in many]
            else:
                argv.append(self._word(word, values))
        return {"argv": argv}

    def _word(self, word: str, values: Values) -> str:
        def value(match: re.Match[str]) -> str:
            if match["braces"]:
                return match[0][1:-1]
            one = values[match["field"]]
            return one if isinstance(one, str) else "".join(one)  # of a list within a word there is one or none

        filled = self._piece.sub(value, word)
        first = self._piece.match(word)
        name = first["field"] if first else None
        _check(name or "", filled, 0)
        if name is not None and filled.startswith("-") and "--" not in self._words[: self._words.index(word)]:
            raise MalformedTask(
                f"its value begins with a dash and could pass for an option: {filled!a}"[:300]
                + f"; write `-- {{{name}}}`, `./{{{name}}}` or `--option={{{name}}}`",
                name,
            )
        return filled

    def _fields_in(self, word: str) -> list[str]:
        return [match["field"] for match in self._piece.finditer(word) if match["field"] is not None]


def _check(name: str, value: str, more_bytes: int) -> None:
    if "\0" in value:
        raise MalformedTask(f"its value holds a NUL, which no argument of a program can: {value!a}"[:300], name)
    if (size := len(value.encode(errors="surrogatepass")) + more_bytes + 1) > MAX_ARGUMENT_BYTES:
        raise MalformedTask(f"its value has {size} bytes, and a program takes {MAX_ARGUMENT_BYTES} at most", name)
