"""Templates of `fanout`: no value says anything but itself to the shell (A2)."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.errors import MalformedTask
from jobq.submit.command_template import CommandTemplate, InvalidTemplate
from tests.cli.push.shells import HOSTILE, said_by


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_a_hostile_value_stays_one_word(value: str, shell: str) -> None:
    filled = CommandTemplate("printf '[%s]' -- x{v} {v} --o={v} $(printf %s {v} >/dev/null; echo ok)").filled(
        {"v": value}
    )
    assert said_by(filled, shell) == f"[--][x{value}][{value}][--o={value}][ok]"
    assert not Path("/pwned").exists()


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
def test_no_value_is_part_of_the_shells_text(value: str) -> None:
    filled = CommandTemplate("echo -- {v}").filled({"v": value})
    assert (filled.command, filled.env) == ('echo -- "$FANOUT_v"', {"FANOUT_v": value})


def words(template: str, count: int = 1) -> str:
    """Return a template that says what its fields became, in brackets."""
    return f"show() {{{{ [ $# -eq {count} ] && printf '[%s]' \"$@\"; }}}}; {template}"


# Each gives one value to `show`; True: to something else, which may fail, and no more is asked than that nothing runs.
ACCEPTED = {
    "show {x}": False, "show $(true){x}": False, 'V={x}; show "$V"': False, "show a{x}": False, 'show "a"{x}': False,
    "show {x}'b'": False, 'show \\"{x}': False, "show x#{x}": False, "if true; then show {x}; fi": False,
    'export N={x}; show "$N"': False, "f() {{ show {x}; }}; f": False, 'for i in {x}; do show "$i"; done': False,
    "case {x} in {x}) show {x};; esac": False, 'show --o="a b"{x}': False, "sh -c 'exit 0' -- {x}; show {x}": False,
    "show \\\n {x}": False, "# it's\nshow {x}": False, 'echo "$(echo "a")" >/dev/null; show {x}': False,
    'set -- {x}; show "${{1}}"': False, "show ${V:-}{x}": False,
    "cat <<<{x}": True, "echo $(echo -- {x})": True, "sleep {x}": True, "seq {x}": True, "head -n {x} /dev/null": True,
    "[ {x} -gt 5 ]": True, "case a in {x}) echo;; esac": True, "exit {x}": True, "cd {x}": True, "printf %d {x}": True,
    "kill {x}": True, "shift {x}": True, "umask {x}": True, "test {x}": True, "A=({x}); echo ${A[0]}": True,
    "export {x}=1": True, "echo {a,{x}}": True, "echo >/dev/null {x}": True, "{x}": True, "read V <<<{x}": True,
}  # fmt: skip
REFUSED = [
    'out="$(basename "{x}")"; echo "$out"', 'echo "${V:-"{x}"}"', "echo $(({x}+1))", "[[ {x} -gt 5 ]] && echo",
    "((i={x})); echo $i", "echo ${{V:-{x}}}", "echo ${V:-{x}}", "let i={x}", "for ((i=0;i<{x};i++)); do break; done",
    "echo $[{x}+1]", "a[{x}]=1", "echo ${{A[{x}]}}", "echo ${{A:{x}:2}}", "declare -i n={x}", "echo $\\\n'a\\' {x}",
    "test -v {x}", "echo `echo a` {x}", 'echo "$(echo "a {x}")"', 'echo "${{V:-"{x}"}}"', "V={x}; echo $((V))",
    "V={x}; declare -i N=$V", "V={x}; echo ${A[V]}", "V={x}; echo ${A[$V]}", "V={x}; echo ${S:V}", "V={x}; A[$V]=1",
    "V={x}; echo ${!V}", "V={x}; echo ${V@P}", "eval {x}", 'eval "echo $V" {x}', "if let {x}; then :; fi",
    "typeset -i n; n={x}", "f() {{ local -i n={x}; }}; f", "read {x}", "printf -v {x} a", "trap {x} EXIT", "RANDOM={x}",
    "OPTIND={x}", "PS4={x}; set -x; :", "BASH_ENV={x} bash -c :", "mapfile -C {x} -c 1 a", "wait -n -p {x}",
    "echo >&{x}", "A=([{x}]=1)", "[ 1 = 1 -a -v {x} ]", "le\\\nt i={x}", "$(\\\n({x}))", "cat <\\\n<E\n{x}\nE",
    '"$(case a in a) echo "{x}";; esac)"', "\"${V:-'}\"'}\"{x}", "echo $'{x}'", "echo '{x}", 'echo "a {x}',
    "declare -n V={x}; echo $V", "select i in {x}; do break; done", "V=1 let i={x}", "time let {x}",
]  # fmt: skip


def test_no_template_lets_a_value_run(tmp_path: Path) -> None:
    """Every template and value, in both shells: what is accepted runs nothing, and gets the value as it is (A2)."""
    canary = tmp_path / "P"
    run = f"touch {canary}"
    values = [
        f"$({run})", f"a[$({run})]", f"`{run}`", f"'; {run}; '", f'"; {run}; "', f"x\n{run}\n", "*", "a  b", "",
        f"x; {run}", f")); {run}; ((", f"$({run})1", f"{{{run},}}", f"}}; {run}; #", f"\\$({run})",
    ]  # fmt: skip
    failures: list[tuple[object, ...]] = []
    for template, may_fail in ACCEPTED.items():
        command = CommandTemplate(words(template))
        for value in values:
            filled = command.filled({"x": value})
            for shell in ("bash", "sh"):
                done = subprocess.run(
                    [shell, "-c", filled.command], capture_output=True, check=False, cwd=tmp_path,
                    stdin=subprocess.DEVNULL, env={**os.environ, **filled.env}, timeout=20,
                )  # fmt: skip
                if canary.exists():
                    canary.unlink()
                    failures.append(("ran", shell, template, value))
                if not may_fail and value not in done.stdout.decode():
                    failures.append(("lost", shell, template, value, done.stdout))
                if not may_fail and not (done.stdout.startswith(b"[") and done.stdout.endswith(b"]")):
                    failures.append(("split", shell, template, value, done.stdout, done.stderr))
    assert failures == []


@pytest.mark.parametrize("template", REFUSED, ids=ascii)
def test_what_would_evaluate_or_split_a_value_is_refused(template: str) -> None:
    with pytest.raises(InvalidTemplate):
        CommandTemplate(template)


@pytest.mark.parametrize(
    "template",
    [
        "python run.py eval {x}", "pytest -v {x}", "echo 'let it go' {x}", "echo ${V:-a} ${V#b} ${#V} ${A[0]} {x}",
        "grep '[[:space:]]' -- {x}", "while read -r V; do echo $V; done <f; echo {x}", "cat < {x} 2>&1",
    ],
)  # fmt: skip
def test_what_is_harmless_is_not_refused(template: str) -> None:
    assert '"$FANOUT_x"' in CommandTemplate(template).filled({"x": "a"}).command


def test_a_value_that_no_program_could_be_given_is_refused_before_it_is_queued() -> None:
    fits = "x" * (128 * 1024 - len("FANOUT_v=") - 1)
    assert said_by(CommandTemplate("printf %s {v} | wc -c").filled({"v": fits})).strip() == str(len(fits))
    with pytest.raises(MalformedTask, match="131073 bytes"):
        CommandTemplate("echo {v}").filled({"v": fits + "x"})
    most = CommandTemplate("printf '[%s]' -- {items} | tail -c 10").filled({"items": [str(n) for n in range(10_000)]})
    assert said_by(most) == "998][9999]"
    with pytest.raises(MalformedTask, match="a smaller --batch"):
        CommandTemplate("echo -- {items} {items}").filled({"items": ["a"] * 10_000})


@pytest.mark.parametrize("value", ["-", "-rf", "--help", "-n 1"])
def test_a_leading_dash_that_could_pass_for_an_option_is_refused(value: str) -> None:
    for refused in (
        "rm {v}",
        "rm ''{v}",
        "rm {e}{v}",
        "rm -- x; rm {v}",
        "rm {v} --",
        "rm $(ls {v})",
        "rm -- $(ls {v})",
    ):
        with pytest.raises(MalformedTask, match="could pass for an option"):
            CommandTemplate(refused).filled({"v": value, "e": ""})
    for allowed in ("rm -- {v}", "rm -f -- a {v}", "rm ./{v}", "rm --file={v}"):
        assert value in CommandTemplate(allowed).filled({"v": value}).env.values()
    for maybe in ("rm $V{v}", "rm {{a,{v}}}", "rm ${V}{v}"):
        with pytest.raises(MalformedTask, match="could pass for an option"):
            CommandTemplate(maybe).filled({"v": value})


def test_a_nul_is_refused() -> None:
    with pytest.raises(MalformedTask, match="holds a NUL"):
        CommandTemplate("echo {v}").filled({"v": "a\0b"})


@pytest.mark.parametrize(
    "template",
    [
        "echo '{v}'", 'echo "{v}"', "echo `echo {v}`", 'echo "$(echo {v})"', "echo 1 # {v}", "cat <<EOF\n{v}\nEOF",
        "echo $'it\\'s {v}'", "echo 'a\\' {w} 'b {v}'", 'echo "a\\" {v}"',
    ],
)  # fmt: skip
def test_a_field_within_quotes_is_refused(template: str) -> None:
    with pytest.raises(InvalidTemplate):
        CommandTemplate(template)


def test_braces_of_the_shell_are_left_to_it() -> None:
    filled = CommandTemplate("a=1; echo ${a} {{v}} {v} {1..2} \\{v\\}").filled({"v": "x"})
    assert filled.command == 'a=1; echo ${a} {v} "$FANOUT_v" {1..2} \\{v\\}'


def test_unknown_fields_and_templates_without_any_are_refused() -> None:
    with pytest.raises(InvalidTemplate, match=r"no field {nmae}; there are: id, name\..*{{nmae}}"):
        CommandTemplate("echo {nmae}").check({"id", "name"})
    with pytest.raises(InvalidTemplate, match="has no field"):
        CommandTemplate("echo hello")


def test_a_list_becomes_words() -> None:
    filled = CommandTemplate("printf '[%s]' -- {items}").filled({"items": ["a b", "-x", "c'd"]})
    assert said_by(filled) == "[--][a b][-x][c'd]"
