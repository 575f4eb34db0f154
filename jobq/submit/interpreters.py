"""Which words of a command an interpreter runs as code, as `sh -c`, `python -c` and `perl -e` do."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class _Interpreter:
    """A program, and what its options take.

    Attributes:
        names: of the program.
        code: letters of the options behind which stands code.
        value: letters of those behind which stands a value, which is no code.
        attached: letters of those whose value, if any, ends their own word.
        last: letters of those that end the options.
        long_code, long_value: the same with long names.
        is_shell: whether its code is the first word that is no option, and the only one.
    """

    names: str
    code: str
    value: str = ""
    attached: str = ""
    last: str = ""
    long_code: tuple[str, ...] = ()
    long_value: tuple[str, ...] = ()
    is_shell: bool = False


_INTERPRETERS: Final = (
    _Interpreter(
        r"(ba|da|k|z|a|fi|c|tc|mk)?sh", "c", value="oO", long_value=("--rcfile", "--init-file"), is_shell=True
    ),
    _Interpreter(r"(python|pypy)[\d.]*", "c", value="WX", last="m"),
    _Interpreter(r"perl[\d.]*", "eE", value="IMm", attached="xiFCDdV"),
    _Interpreter(r"ruby[\d.]*", "e", value="IrCE", attached="xiFTKW"),
    _Interpreter(r"lua[\d.]*", "e", value="l"),
    _Interpreter(r"R|Rscript", "e", value="fg"),
    _Interpreter(r"node|bun", "ep", value="rC", long_code=("--eval", "--print"), long_value=("--require", "--import")),
    _Interpreter(r"php[\d.]*", "rBRE", value="dczSft"),
)


def code_in(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, or their ends, that an interpreter among them would run as code.

    Args:
        words: a program with its arguments; other programs may stand before, as `env` and `nice` do.
    """
    program: _Interpreter | None = None
    awaits = ""  # what the next word is: "code" or "value"
    for word in words:
        is_option = len(word) > 1 and word[0] in "-+"
        if awaits == "value":
            awaits = ""
        elif awaits and program is not None and not (program.is_shell and is_option):
            yield word
            awaits, program = "", None if program.is_shell else program
        elif program is not None and is_option:
            program, awaits, code = _option(program, word, awaits)
            yield code
        else:
            program = next((each for each in _INTERPRETERS if re.fullmatch(each.names, word.rpartition("/")[2])), None)


def _option(program: _Interpreter, word: str, awaits: str) -> tuple[_Interpreter | None, str, str]:
    """Return whose options follow, what the next word is, and what of this one is code."""
    if word.startswith("--"):
        name, _, value = word.partition("=")
        if name in program.long_code:
            return program, "" if value else "code", value
        if word in program.long_value:
            awaits = "value"
        return (program if awaits or word != "--" else None), awaits, ""
    for number, letter in enumerate(word[1:], 2):
        rest = word[number:]
        if letter in program.last:
            return None, "", ""
        if letter in program.code:
            if not program.is_shell:
                return program, "" if rest else "code", rest
            awaits = "code"
        elif letter in program.value and not rest:
            awaits = "value"
        elif letter in program.value + program.attached:
            break
    return program, awaits, ""
