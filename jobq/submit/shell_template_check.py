"""Where in a shell command a field may stand, so that its value is one word and never code (rules.md 3, A2).

A value is never part of the shell's text; what is judged here is where the shell itself would evaluate it a second time
(arithmetic, `eval`, names of variables), and where it would not be one word (within quotes). In doubt it is refused.
"""

import re
from typing import Final

from jobq.errors import JobqError

FIELD: Final = r"(?<!\$)\{[A-Za-z_][A-Za-z0-9_]*\}"
_BEGIN: Final = (
    r"(?:^|[;&|(){}\n`!]|\b(?:then|do|else|elif|if|while|until|time|command|builtin)\s)\s*(?:[A-Za-z_]\w*=\S*\s+)*"
)
_CONSTANT: Final = r"(?:\[(?:\d+|[@*])\])?"
_UNTIL_FIELD: Final = rf"\b[^;|&\n<]*{FIELD}"
# What evaluates the text of a value, or of a variable that it was assigned to: bash runs the $(...) in `a[$(...)]`.
_EVALUATES: Final = tuple(
    (re.compile(pattern), what)
    for pattern, what in (
        (r"(?<!<)<<(?!<)", "a here-document (<<)"),
        (r"\$'", "$'...'"),
        (r"\(\(", "arithmetic, ((...))"),
        (r"\$\[", "arithmetic, $[...]"),
        (r"(?:^|[\s;&|(!`])\[\[(?=\s)", "[[...]]"),
        (
            rf"{_BEGIN}(?:let|eval|declare|typeset|local|coproc|select)\b",
            "let, eval, declare, typeset, local or select",
        ),
        (
            rf"{_BEGIN}(?:read|readonly|unset|mapfile|readarray|getopts|trap|alias|wait|compgen|complete){_UNTIL_FIELD}",
            "a builtin that takes the name of a variable or code",
        ),
        (rf"\bprintf\s+-v\s*\S*{FIELD}", "printf -v with a field as the name"),
        (rf"{_BEGIN}(?:test|\[)\s(?:[^;|&\n]*\s)?-[vR]\s", "test -v"),
        (
            rf"\$\{{(?!#?(?:[A-Za-z_]\w*|\d+|[@*#?$-]){_CONSTANT}(?:\}}|:?[-=+?]|[#%/^,]))",
            "${...} with an offset, a computed subscript, ! or @",
        ),
        (r"(?:^|[\s;&|(])[A-Za-z_]\w*\[(?!\d+\])[^\]\s]*\]\+?=", "an element of an array by a computed subscript"),
        (
            rf"\b(?:OPTIND|RANDOM|SRANDOM|SECONDS|HISTCMD|LINENO|PS\d|PROMPT_COMMAND|BASH_ENV|ENV)=\S*{FIELD}",
            "a variable that the shell evaluates",
        ),
        (rf"[<>]&\s*\S*{FIELD}", "the number of a descriptor"),
    )
)
_ENDS_WORD: Final = frozenset(" \t\n;|&()<>")
_CONTINUATION: Final = "\\\n"
_INSTEAD: Final = "; put that into a script that takes arguments, and write `bash script.sh -- {field}`"


class InvalidTemplate(JobqError):
    """The template cannot be filled in safely; the message says where and what to write instead."""

    exit_code = 2


def refuse_what_evaluates(text: str) -> None:
    """Raise InvalidTemplate for a template of which the shell might evaluate a value.

    It looks at the text, quoted or not: what is refused without need is told plainly, and can be written into a script.
    """
    for one in (text, text.replace(_CONTINUATION, "")):
        for pattern, what in _EVALUATES:
            if pattern.search(one):
                raise InvalidTemplate(f"the template has {what}, where the shell may evaluate a value again{_INSTEAD}")


class Scanner:
    """Walks through a command, and knows what is open, and where in a word it is.

    Attributes:
        begins_word: whether a value here could be the beginning of a word: also behind what may be empty.
        after_dashes: whether a `--` stands before, in the same command.
    """

    def __init__(self) -> None:
        self.begins_word = True
        self.after_dashes = False
        self._open: list[str] = []  # of: ' " ( {
        self._is_comment = False
        self._after_dollar = False
        self._in_expansion = False  # within $NAME, which may be empty
        self._word = ""

    def take(self, piece: str) -> None:
        """Go on by one character, or one that a backslash stands before; raises InvalidTemplate."""
        top = self._open[-1] if self._open else ""
        if self._is_comment:
            self._is_comment = not piece.endswith("\n")
        elif top == "'":
            if piece.endswith("'"):  # within single quotes a backslash is nothing special
                self._open.pop()
            else:
                self._extend(piece)
        elif piece != _CONTINUATION:
            after_dollar, self._after_dollar = self._after_dollar, piece == "$"
            self._after_dollar &= not after_dollar  # $$ is a number
            self._take(piece, top, after_dollar=after_dollar)

    def _take(self, piece: str, top: str, *, after_dollar: bool) -> None:
        if piece == "`":
            raise InvalidTemplate("backticks hide what is quoted within them; write $(...) instead")
        if after_dollar and piece in ("(", "{"):
            self._open.append(piece)
            if piece == "(":
                self._begin_command()
        elif piece == '"':
            if top == '"':
                self._open.pop()
            else:
                self._open.append(piece)
            self._word += piece
        elif top == '"':
            self._extend(piece)
        elif top == "{":
            self._take_within_expansion(piece)
        else:
            self._take_plain(piece)

    def _take_within_expansion(self, piece: str) -> None:
        if piece == "'" and '"' in self._open:
            raise InvalidTemplate(f"a single quote in ${{...}} within double quotes means two things{_INSTEAD}")
        if piece == "'":
            self._open.append(piece)
        elif piece == "}":
            self._open.pop()

    def _take_plain(self, piece: str) -> None:
        if piece in _ENDS_WORD:
            if self._word == "case" and self._open:
                raise InvalidTemplate(f"a `case` within $(...) or (...) hides where that ends{_INSTEAD}")
            after_dashes = piece in " \t" and (self.after_dashes or self._word == "--")
            self._begin_command()
            self.after_dashes = after_dashes
            if piece == "(":
                self._open.append(piece)
            elif piece == ")" and self._open:
                self._open.pop()
        elif piece == "#" and not self._word:
            self._is_comment = True
        elif piece == "'":
            self._open.append(piece)
            self._word += piece
        else:
            self._extend(piece)

    def _begin_command(self) -> None:
        self.begins_word, self.after_dashes, self._in_expansion, self._word = True, False, False, ""

    def _extend(self, piece: str) -> None:
        in_braces = "{" in self._word
        self._word += piece
        if piece == "$":
            self._in_expansion = True
        elif self._in_expansion and (piece.isalnum() or piece in "_@*#?!"):
            pass
        else:
            self._in_expansion = False
            # The shell makes words of {a,b}: each begins one.
            self.begins_word = piece == "{" or (piece == "," and in_braces)

    def field(self, name: str, piece: str) -> None:
        """Go on by a field; raises InvalidTemplate where its value could not be one word."""
        if self._is_comment:
            raise InvalidTemplate(f"{piece} stands within a comment")
        if quotes := [one for one in self._open if one in "'\""]:
            raise InvalidTemplate(
                f"{piece} stands within quotes ({quotes[0]}), or in a $(...) within them: write it without, as in"
                f" --{name}={piece} or V=$(command -- {piece}); its value is one word without quotes"
            )
        if "{" in self._open or self._after_dollar:
            raise InvalidTemplate(f"{piece} stands within ${{...}}, which may evaluate it; assign it first: V={piece}")
        if "[" in self._word:
            raise InvalidTemplate(f"{piece} stands behind a [, where the shell may evaluate it{_INSTEAD}")
        self._word += piece
        self._in_expansion = False

    def end(self) -> None:
        """Raise InvalidTemplate when something is still open: the shell sees quotes elsewhere than we do."""
        if self._open and self._open[-1] in "'\"{":
            raise InvalidTemplate(
                f"the template ends within an open {self._open[-1]} (two braces }}}} stand for one of the shell's)"
            )
