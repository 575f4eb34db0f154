"""Commands whose fields are arguments of a list, as GNU parallel has them: {} {.} {/} {//} {/.} {1}.

As in `command_template` no value is ever code: in an argument vector a field is filled in within its word, and a
command for the shell finds "$ARG_1", "$ARG_2" and so on, and "$@".
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jobq.submit.command_template import ArgvTemplate, InvalidTemplate, pieces_of

PREFIX: Final = "ARG_"  # of the variables of a command for the shell
SEQUENCE: Final = f"{PREFIX}SEQ"
SLOT: Final = "JOBQ_SLOT"  # variable: the number of the slot that a job runs in, from 1
_PART: Final = r"(?:\.|//?|/\.)?"
_PIECE: Final = pieces_of(rf"(?:[1-9]\d{{0,5}})?{_PART}")
_IN_SHELL: Final = re.compile(rf"(?<![$'])\{{((?:[1-9]\d{{0,5}})?{_PART})\}}")
_FIELD: Final = re.compile(rf"(\d*)({_PART})")
_VARIABLE: Final = re.compile(rf"\$\{{?[#!]?{PREFIX}(\w+)")
_ALL: Final = re.compile(r"\$\{?[@*]")

_PARTS: Final[Mapping[str, Callable[[str], str]]] = {
    "": lambda value: value,
    ".": lambda value: re.sub(r"\.[^/.]*\Z", "", value),
    "/": lambda value: value.rpartition("/")[2],
    "//": lambda value: posixpath.dirname(value.rstrip("/") or value[:1]) or ".",
    "/.": lambda value: re.sub(r"\.[^/.]*\Z", "", value.rpartition("/")[2]),
}


class ArgumentWords:
    """A program and its arguments, with fields; without any, what the list gives stands at its end.

    Args:
        words: the program first.

    Attributes:
        text: as it was given.
    """

    def __init__(self, words: Sequence[str]) -> None:
        has_field = any(match["field"] is not None for word in words for match in _PIECE.finditer(word))
        self._argv = ArgvTemplate(words if has_field else [*words, "{}"], _PIECE)
        self.text = self._argv.text

    def check(self, count: int) -> None:
        """Raise InvalidTemplate for a field that no job has.

        Args:
            count: how many arguments each job has at most.
        """
        for name in self._argv.names:
            _check_place(_place(name), count, f"{{{name}}}")
        self._argv.check(self._argv.names)
        if count != 1:
            for name in self._argv.names & _PARTS.keys():
                self._argv.check(self._argv.names, many=name)

    def filled(self, arguments: Sequence[str], _number: int) -> dict[str, Any]:
        """Return the fields of a task; raises MalformedTask.

        Args:
            arguments: of one job.
        """
        return self._argv.filled({name: _value(name, arguments) for name in self._argv.names})


class ArgumentShell:
    """A command for the shell, which finds the arguments in variables.

    Args:
        text: of the command.

    Attributes:
        text: the same.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._has_all = _ALL.search(text) is not None
        self._names = {name for name in _VARIABLE.findall(text) if name != "SEQ"}

    def check(self, count: int) -> None:
        """Raise InvalidTemplate for a field in braces, for a variable that no job has, and for a text without any.

        Args:
            count: how many arguments each job has at most.
        """
        if match := _IN_SHELL.search(self.text):
            meant = f"{PREFIX}{_place(match[1]) or 1}"
            raise InvalidTemplate(
                f'{match[0]} is not filled in within a command for the shell: write "${meant}" there, with the double'
                f" quotes; or give a program and its arguments after `--`, without -c, where {match[0]} is filled in."
                f" For the text {match[0]} itself write '{match[0]}', in single quotes"
            )
        for name in sorted(self._names):
            if not name.isdecimal() or name.startswith("0"):
                raise InvalidTemplate(
                    f"there is no variable ${PREFIX}{name}; there are ${PREFIX}1, ... and ${SEQUENCE}"
                )
            _check_place(int(name), count, f"${PREFIX}{name}")
        if not self._names and not self._has_all and SEQUENCE not in self.text:
            raise InvalidTemplate(
                f'the command uses none of its arguments, so all jobs would be the same: write "${PREFIX}1" where an'
                ' argument is to stand, or "$@" for all of them; commands by themselves come from a FILE or a pipe:'
                " echo 'echo hello' | jobq run"
            )

    def filled(self, arguments: Sequence[str], number: int) -> dict[str, Any]:
        """Return the fields of a task; raises MalformedTask.

        Args:
            arguments: of one job.
            number: of the job, counted from 1.
        """
        env = {f"{PREFIX}{place}": value for place, value in enumerate(arguments, 1)}
        text = self.text
        if self._has_all:
            text = "set -- " + " ".join(f'"${name}"' for name in env) + f"\n{text}"
        return {"command": text, "env": {**env, SEQUENCE: str(number)}}


ArgumentTemplate = ArgumentWords | ArgumentShell


def _place(name: str) -> int | None:
    """Return which argument a field means; None = all of them, or none."""
    match = _FIELD.fullmatch(name)
    return int(match[1]) if match and match[1] else None


def _check_place(place: int | None, count: int, shown: str) -> None:
    if place is not None and place > count:
        has = "one argument" if count == 1 else f"{count} arguments"
        raise InvalidTemplate(f"there is no {shown}: each job has {has}, by the lists that are given")


def _value(name: str, arguments: Sequence[str]) -> str | list[str]:
    match = _FIELD.fullmatch(name)
    assert match is not None, "the pattern of fields has no other"
    part = _PARTS[match[2]]
    if match[1]:  # what the last line or the last group lacks is no word at all
        return [part(value) for value in arguments[int(match[1]) - 1 : int(match[1])]]
    return part(arguments[0]) if len(arguments) == 1 else [part(value) for value in arguments]
