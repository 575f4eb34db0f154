"""Templates of commands: no value says anything but itself, in whatever context it stands (A2)."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import MalformedTask
from jobq.submit.command_template import ArgvTemplate, InvalidTemplate, ShellTemplate
from tests.cli.push.shells import HOSTILE, said_by

VALUES = ["", *HOSTILE, "x" * 100_000]
# Where a shell may read a variable; each prints its value, or in single quotes and a quoted here-document its name.
CONTEXTS = {
    "double quotes": 'printf %s "$PARAM_v"',
    "within a word": 'printf %s a"${PARAM_v}"b',
    "an assignment": 'V=$PARAM_v; printf %s "$V"',
    "a substitution": 'printf %s "$(printf %s. "$PARAM_v")"',
    "backticks": 'printf %s "`printf %s. "$PARAM_v"`"',
    "a default": 'printf %s "${NOTHING:-$PARAM_v}"',
    "a here-document": "cat <<EOF\n$PARAM_v\nEOF",
    "a case": 'case "$PARAM_v" in "$PARAM_v") printf %s "$PARAM_v";; esac',
    "an argument of a script": "sh -c 'printf %s \"$1\"' sh \"$PARAM_v\"",
    "an inner shell": "sh -c 'printf %s \"$PARAM_v\"'",
    "a quoted here-document": "cat <<'EOF'\n$PARAM_v\nEOF",
    "single quotes": "printf %s '$PARAM_v'",
    "a comment": "printf %s ok # $PARAM_v",
    "no quotes": "printf %s. $PARAM_v",
}  # fmt: skip
NOT_EXPANDED = {"a quoted here-document": "$PARAM_v\n", "single quotes": "$PARAM_v", "a comment": "ok"}
AROUND = {
    "within a word": ("a", "b"),
    "a substitution": ("", "."),
    "backticks": ("", "."),
    "a here-document": ("", "\n"),
}


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_no_value_is_code_in_any_context_of_a_shell(context: str, shell: str, tmp_path: Path) -> None:
    """What the user quoted comes out as it is; what he did not is split and globbed, and still never run."""
    template = ShellTemplate(CONTEXTS[context])
    before, after = AROUND.get(context, ("", ""))
    for value in VALUES:
        said = said_by(template.filled({"v": value}), shell, tmp_path)
        if context != "no quotes":
            assert said == NOT_EXPANDED.get(context, f"{before}{value}{after}")
        assert list(tmp_path.iterdir()) == [], value


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
def test_a_command_for_the_shell_is_the_same_whatever_the_values_are(value: str) -> None:
    filled = ShellTemplate("echo -- $v").filled({"v": value, "count(*)": "3"})
    assert filled == {"command": "echo -- $v", "env": {"PARAM_v": value}}


def test_items_are_the_arguments_of_a_command_for_the_shell(tmp_path: Path) -> None:
    values = [*VALUES[:-1], "-n"]
    template = ShellTemplate("printf '[%s]' \"$@\"; printf '%s' $#")
    for shell in ("bash", "sh"):
        said = said_by(template.filled({"items": values, "count": "2"}), shell, tmp_path)
        assert said == "".join(f"[{value}]" for value in values) + str(len(values))
    assert list(tmp_path.iterdir()) == []


def test_words_of_an_argument_vector_are_what_they_are(tmp_path: Path) -> None:
    template = ArgvTemplate(["printf", "[%s]", "--o={v}", "a{v}b{v}", "$(touch pwned)", "--", "{v}"])
    for value in VALUES[:-1]:
        said = said_by(template.filled({"v": value}), cwd=tmp_path)
        assert said == f"[--o={value}][a{value}b{value}][$(touch pwned)][--][{value}]"
    assert list(tmp_path.iterdir()) == []
    assert said_by(ArgvTemplate(["printf", "%s", "{v}"]).filled({"v": VALUES[-1]})) == VALUES[-1]


def test_items_are_words_of_an_argument_vector() -> None:
    template = ArgvTemplate(["printf", "[%s]", "{first}", "--", "{items}"])
    values = ["a b", "-x", "c'd", ""]
    assert said_by(template.filled({"first": "1", "items": values})) == "[1][--][a b][-x][c'd][]"
    with pytest.raises(InvalidTemplate, match=r"\{items\} is many words.*not --all=\{items\}"):
        ArgvTemplate(["echo", "--all={items}"]).check({"items", "first"}, many="items")


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{v}", "x"), ("{{v}}", "{v}"), ("${v}", "$x"), ("{print $1}", "{print $1}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("{}", "{}"), ("{1..2}", "{1..2}"), ("{v}{{v}}{v}", "x{v}x"), ("{{", "{{"),
    ],
)  # fmt: skip
def test_braces_around_anything_but_a_name_stay(word: str, filled: str) -> None:
    assert ArgvTemplate(["echo", "{v}", word]).filled({"v": "x"}) == {"argv": ["echo", "x", filled]}


def test_a_field_in_a_command_for_the_shell_is_refused_and_told_how_to_write() -> None:
    """To leave it to the shell would run something else in silence."""
    for text in ("echo {v}", "echo '{v}'", "echo {{v}}", "wc --x={v}", "echo $(({v}+1))"):
        with pytest.raises(InvalidTemplate, match=r'\{v\} is not filled in .* write "\$PARAM_v" there'):
            ShellTemplate(text).check({"v", "w"})
    with pytest.raises(InvalidTemplate, match=r'write "\$@" there'):
        ShellTemplate("wc -l -- {items}").check({"items"}, many="items")
    for text in ("echo ${v}", "echo {w}", "awk '{print $1}'", "echo {v,w}"):
        ShellTemplate(text).check({"v"})


def test_a_variable_that_no_record_has_is_refused() -> None:
    """It was empty in each task, and all of them succeeded."""
    for text in ('echo "$PARAM_nmae"', 'rm -rf "/data/${PARAM_nmae}"', "echo ${#PARAM_nmae}"):
        with pytest.raises(InvalidTemplate, match=r"no variable \$PARAM_nmae; there are: \$PARAM_id, \$PARAM_name"):
            ShellTemplate(text).check({"id", "name"})
    with pytest.raises(InvalidTemplate, match=r'no variable \$PARAM_line; there are: \$PARAM_first, .*are "\$@"'):
        ShellTemplate('echo "$PARAM_line"').check({"first", "items"}, many="items")
    ShellTemplate('echo "${PARAM_id:-none}" "$HOME" $FANOUT').check({"id"})


def test_unknown_fields_and_words_without_any_are_refused() -> None:
    with pytest.raises(InvalidTemplate, match=r"no field {nmae}; there are: id, name\..*write {{nmae}}"):
        ArgvTemplate(["echo", "{nmae}"]).check({"id", "name"})
    with pytest.raises(InvalidTemplate, match="has no field"):
        ArgvTemplate(["echo", "{{hello}}"])


def test_a_value_that_no_program_could_be_given_is_refused_before_it_is_queued() -> None:
    shell, argv = ShellTemplate('printf %s "$PARAM_v" | wc -c'), ArgvTemplate(["printf", "%s", "{v}"])
    fits = "x" * (128 * 1024 - len("PARAM_v=") - 1)
    assert said_by(shell.filled({"v": fits})).strip() == str(len(fits))
    with pytest.raises(MalformedTask, match="PARAM_v: its value has 131073 bytes"):
        shell.filled({"v": fits + "x"})
    fits = "x" * (128 * 1024 - 1)
    assert said_by(argv.filled({"v": fits})) == fits
    with pytest.raises(MalformedTask, match="v: its value has 131073 bytes"):
        argv.filled({"v": fits + "x"})
    most = ShellTemplate("printf '[%s]' \"$@\" | tail -c 10").filled({"items": [str(n) for n in range(10_000)]})
    assert said_by(most) == "998][9999]"
    with pytest.raises(MalformedTask, match="a smaller --batch"):
        ShellTemplate("x" * 30_000).filled({"items": ["a"] * 10_000})
    for template in (shell, argv):
        with pytest.raises(MalformedTask, match="holds a NUL"):
            template.filled({"v": "a\0b"})


@pytest.mark.parametrize("value", ["-", "-rf", "--help", "-n 1"])
def test_a_word_that_could_pass_for_an_option_is_refused(value: str) -> None:
    for refused in (["rm", "{v}"], ["rm", "{e}{v}"], ["rm", "{v}", "--"]):
        with pytest.raises(MalformedTask, match="could pass for an option"):
            ArgvTemplate(refused).filled({"v": value, "e": ""})
    for allowed in (["rm", "--", "{v}"], ["rm", "-f", "--", "a", "{v}"], ["rm", "./{v}"], ["rm", "--file={v}"]):
        (*_, last) = ArgvTemplate(allowed).filled({"v": value})["argv"]
        assert last.endswith(value)


def test_a_field_beside_white_space_is_refused() -> None:
    """Such a word is the text of a program that nobody here knows, as `ssh host 'cat {v}'`."""
    for word in ("cat {v}", "{v} ", "a\t{v}", "a\nb{v}"):
        with pytest.raises(InvalidTemplate, match=r"\{v\} stands in a word with white space, .* word of its own"):
            ArgvTemplate(["ssh", "host", word]).check({"v"})
    ArgvTemplate(["ssh", "host", "echo {{v}} $1", "{v}"]).check({"v"})
