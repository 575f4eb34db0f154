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
        is_shell: whether its code is the first word that is no option; the word behind that is its $0.
        repeats: whether options follow the code, perhaps with more of it.
    """

    names: str
    code: str
    value: str = ""
    attached: str = ""
    last: str = ""
    long_code: tuple[str, ...] = ()
    long_value: tuple[str, ...] = ()
    is_shell: bool = False
    repeats: bool = True


_INTERPRETERS: Final = (
    _Interpreter(
        r"(ba|da|k|z|a|fi|c|tc|mk)?sh", "c", value="oO", long_code=("--command",),
        long_value=("--rcfile", "--init-file"), is_shell=True, repeats=False,
    ),
    _Interpreter(r"(python|pypy)[\d.]*", "c", value="WX", last="m", repeats=False),
    _Interpreter(r"perl[\d.]*", "eE", value="IMm", attached="xiFCDdV"),
    _Interpreter(r"ruby[\d.]*", "e", value="IrCE", attached="xiFTKW"),
    _Interpreter(r"lua[\d.]*", "e", value="l"),
    _Interpreter(r"R|Rscript", "e", value="fg"),
    _Interpreter(
        r"node(js)?|bun", "ep", value="rC", long_code=("--eval", "--print"), long_value=("--require", "--import")
    ),
    _Interpreter(r"php[\d.]*", "rBRE", value="dczSft"),
)  # fmt: skip
_ENDS: Final = ("--", "--args")


@dataclass
class _Next:
    """What comes next of a command.

    Attributes:
        program: whose options stand here; None = nobody's.
        is_code: whether its code comes, behind such options.
        values: how many words come before that are values of options.
    """

    program: _Interpreter | None = None
    is_code: bool = False
    values: int = 0


def code_in(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, or their ends, that an interpreter among them would run as code.

    Args:
        words: a program with its arguments; other programs may stand before, as `env` and `nice` do.
    """
    coming = _Next()
    for word in words:
        program, is_option = coming.program, len(word) > 1 and word[0] in "-+"
        if coming.values:
            coming.values -= 1
        elif program is not None and coming.is_code and not (program.is_shell and is_option):
            yield word
            coming = _Next(program if program.repeats else None, values=int(program.is_shell))
        elif program is not None and is_option:
            yield _take_option(program, word, coming)
        else:
            name = word.rpartition("/")[2]
            coming.program = next((each for each in _INTERPRETERS if re.fullmatch(each.names, name)), None)


def _take_option(program: _Interpreter, word: str, coming: _Next) -> str:
    """Note what an option says of the words behind it; return what of its own is code."""
    if word.startswith("--"):
        name, _, value = word.partition("=")
        coming.is_code = coming.is_code or (name in program.long_code and not value)
        coming.values = int(word in program.long_value)
        if word in _ENDS and not coming.is_code:
            coming.program = None
        return value if name in program.long_code else ""
    for number, letter in enumerate(word[1:], 2):
        rest = word[number:]
        if program.is_shell:
            coming.is_code = coming.is_code or letter in program.code
            coming.values += letter in program.value
        elif letter in program.last:
            coming.program = None
            break
        elif letter in program.code:
            if rest.strip(program.code):
                coming.program = program if program.repeats else None
                return rest
            coming.is_code = True
            break
        elif letter in program.value + program.attached:
            coming.values = int(letter in program.value and not rest)
            break
    return ""
