"""One command over lists of arguments: each value is one word of text, whatever it holds; none is ever code."""

import itertools
import random
import shlex

import pytest

from tests.cli.conftest import Jobq, read_job_log

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("leaves_nothing")]

SHOW = ("./show",)


def shown(jobq: Jobq, *arguments: str | bytes, stdin: str | bytes = b"") -> list[list[str]]:
    """Return what the program found as its arguments, in the order of the jobs."""
    program = jobq.folder / "show"
    program.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"; printf '\\001'\n")
    program.chmod(0o755)
    jobs = jobq("run", "-k", *arguments, stdin=stdin).out.split("\1")[:-1]
    return [job.split("\0")[:-1] for job in jobs]


def test_lists_make_each_combination_or_go_in_step(jobq: Jobq) -> None:
    program = ("--", *SHOW)
    assert shown(jobq, *program, ":::", "A", "B", ":::", "1", "2") == [["A", "1"], ["A", "2"], ["B", "1"], ["B", "2"]]
    in_step = shown(jobq, *program, ":::", "A", "B", "C", ":::+", "1", "2", ":::", "x")
    assert in_step == [["A", "1", "x"], ["B", "2", "x"]], "as long as the shorter"
    (jobq.folder / "list").write_text("p\r\n\nq r")
    assert shown(jobq, *program, "{2}-{1}", "::::", "list", ":::", "1") == [["1-p"], ["1-"], ["1-q r"]]
    assert shown(jobq, *program, "::::", "list", "::::+", "-", stdin="1\n2\n") == [["p", "1"], ["", "2"]]


def test_standard_input_is_the_list_where_none_is_given(jobq: Jobq) -> None:
    program = ("--", *SHOW)
    assert shown(jobq, *program, stdin="a b\nc\n") == [["a b"], ["c"]]
    assert shown(jobq, "-0", *program, stdin="a\nb\0c\r\0") == [["a\nb"], ["c\r"]]
    assert shown(jobq, "-N", "2", *program, "{2}", "{}", stdin="a\nb\nc\n") == [["b", "a", "b"], ["c"]]
    result = jobq("run", "-c", 'echo "$ARG_SEQ:$ARG_1:$JOBQ_SLOT"', stdin="x\ny\n")
    assert result.lines == ["1:x:1", "2:y:1"]


def test_fields_are_those_of_parallel(jobq: Jobq) -> None:
    fields = ("{}", "{.}", "{/}", "{//}", "{/.}", "{1/.}", "{#}", "{{}}", "{{.}}", "{x}", "${1}")
    assert shown(jobq, "--", *SHOW, *fields, ":::", "a b/c.d.e", "/x", ".rc") == [
        ["a b/c.d.e", "a b/c.d", "c.d.e", "a b", "c.d", "c.d", "{#}", "{}", "{.}", "{x}", "$a b/c.d.e"],
        ["/x", "/x", "x", "/", "x", "x", "{#}", "{}", "{.}", "{x}", "$/x"],
        [".rc", "", ".rc", ".", "", "", "{#}", "{}", "{.}", "{x}", "$.rc"],
    ]


def test_slots_are_used_again_and_never_shared(jobq: Jobq) -> None:
    claim = 'mkdir "in-$JOBQ_SLOT" && sleep 0.05 && rmdir "in-$JOBQ_SLOT" && echo "$JOBQ_SLOT"'
    result = jobq("run", "-n", "3", "-c", f"{claim} $ARG_1", ":::", *map(str, range(12)))
    assert {line.split()[0] for line in result.lines} == {"1", "2", "3"}


def hostile() -> list[str]:
    """Return 500 values that a shell, a parser of options or a template might take for something else."""
    parts = ["'", '"', "$(touch x)", "`touch x`", ";touch x;", "&&", "|", "\n", "\t", " ", "{}", "{1}", "{%}", "{#}"]
    parts += ["$ARG_1", "$@", "%s", "\\", "*", "?", "~", "!", "#", "\u202e", "é", "\x1b[31m", "\x7f", ":::", "a", ""]
    chance = random.Random(7)
    values = ["x" + "".join(chance.choices(parts, k=chance.randint(1, 6))) for _ in range(494)]
    return [*values, "x" * 100_000, "", " ", "{%}", "\u0085", ":::"]


def test_hostile_values_arrive_as_they_are(jobq: Jobq) -> None:
    values = hostile()
    text = "\0".join(values) + "\0"
    (jobq.folder / "values").write_bytes(text.encode())
    assert shown(jobq, "-0", "-n", "2", "--", *SHOW, "--", "{}", "::::", "values") == [
        ["--", value] for value in values
    ]
    by_variable = shown(jobq, "-0", "-n", "2", "-c", 'exec ./show "$ARG_1"', "::::", "values")
    assert by_variable == [[value] for value in values]
    assert not (jobq.folder / "x").exists()


def test_words_behind_the_mark_are_taken_as_they_are(jobq: Jobq) -> None:
    values = [value for value in hostile()[:60] if value]
    assert shown(jobq, "--", *SHOW, ":::", *values) == [[value] for value in values]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-c", "convert {} {.}.png", ":::", "a"), 'write "$ARG_1" there'),
        (("-c", "echo {2}", ":::", "a"), 'write "$ARG_2" there'),
        (("-c", "echo hi", ":::", "a"), "uses none of its arguments"),
        (("-c", "echo $ARG_2", ":::", "a"), "there is no $ARG_2: each job has one argument"),
        (("-c", "echo $ARG_x", ":::", "a"), "there is no variable $ARG_x"),
        (("--", "echo", "{3}", ":::", "a", ":::", "b"), "there is no {3}: each job has 2 arguments"),
        (("--", "sh", "-c", "echo {}", ":::", "a"), "word with white space"),
        (("--", "echo", "x {}", ":::", "a"), "word with white space"),
        (("--", "echo", "x{}", ":::", "a", ":::", "b"), "must be a word of its own"),
        (("--", "rm", ":::", "-rf"), "could pass for an option"),
        (("-N", "2", "--", "echo", ":::", "a", ":::", "b"), "goes with one list"),
        (("--", "echo", ":::+", "a"), "there is none; write :::"),
        (("--", "echo", "::::"), "needs the name of a file"),
        (("--", "echo", "::::", "nowhere"), "cannot read nowhere"),
        (("-c", 'echo "$ARG_1"', "--", "echo", ":::", "a"), "are for one command"),
        ((":::", "echo a"), "lists of arguments are for one command"),
        (("--grid", "x=1,2", "--", "echo", "{x}", ":::", "a"), "do not go with them"),
        (("commands", "--", "echo"), ":::: commands"),
        (("-0",), "are for lists of arguments"),
        (("-k", "--group", "--", "echo", ":::", "a"), "exclude each other"),
        (("-n", "2", "-j", "3", "--", "echo", ":::", "a"), "exclude each other"),
        (("-j", "many", "--", "echo", ":::", "a"), "-j many"),
        (("--halt", "now,fail", "--", "echo", ":::", "a"), "--halt 'now,fail' is none of"),
        (("-k", "--resume", "--queue-file", "q", "--", "echo", ":::", "a"), "use --group"),
    ],
)
def test_what_cannot_be_meant_is_refused(jobq: Jobq, arguments: tuple[str, ...], said: str) -> None:
    result = jobq("run", *arguments, code=2)
    assert said in result.err
    assert result.out == ""


def test_what_is_no_text_is_refused(jobq: Jobq) -> None:
    result = jobq("run", "-0", "--", "echo", stdin=b"a\0\xff\0b\0", code=2)
    assert "standard input, value 2: no text that UTF-8 has" in result.err


def test_a_text_in_quotes_is_no_field(jobq: Jobq) -> None:
    (jobq.folder / "some").mkdir()
    (jobq.folder / "some" / "file").touch()
    result = jobq("run", "-c", """find "$ARG_1" -type f -exec basename '{}' ';'""", ":::", "some")
    assert result.lines == ["file"]


def test_dry_run_prints_each_command_and_runs_none(jobq: Jobq) -> None:
    result = jobq("run", "--dry-run", "--", "touch", "{}", ":::", "a b", "c")
    assert [shlex.split(line) for line in result.lines] == [["touch", "a b"], ["touch", "c"]]
    result = jobq("run", "--dry-run", "-c", 'touch "$ARG_1"', ":::", "a b")
    assert result.lines == ["""export ARG_1='a b' ARG_SEQ=1; touch "$ARG_1\""""]
    assert not list(jobq.folder.glob("a*"))
    (job,) = jobq("run", "--dry-run", "--json", "--", "touch", ":::", "a b").objects
    assert job["argv"] == ["touch", "a b"]


def test_what_is_done_is_not_done_again(jobq: Jobq) -> None:
    named = ("run", "--queue-file", "queue", "--joblog", "log")
    command = ("-c", 'echo "$ARG_1" >> runs; exit "$ARG_1"', ":::", "0", "3")
    result = jobq(*named, *command, code=1)
    assert "failed: job 2 (exit code 3)" in result.err
    more = jobq(*named, "--resume", *command, "0", code=1)
    assert "1 done, 0 failed, 1 failed earlier" in more.err
    assert (jobq.folder / "runs").read_text().split() == ["0", "3", "0"]
    rows = read_job_log(jobq.folder / "log")
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert rows[1][6] == """export ARG_1=3 ARG_SEQ=2; echo "$ARG_1" >> runs; exit "$ARG_1\""""


def test_a_pipe_is_read_as_it_comes(jobq: Jobq) -> None:
    process = jobq.start("run", "--", "echo")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"first\n"
    process.stdin.close()
    assert process.wait(20) == 0


def test_product_of_long_lists_is_in_order(jobq: Jobq) -> None:
    numbers = [str(number) for number in range(40)]
    result = jobq("run", "-n", "2", "--dry-run", "--", "true", "{1}-{2}", ":::", *numbers, ":::", *numbers)
    assert [line.split()[1] for line in result.lines] == [
        "-".join(pair) for pair in itertools.product(numbers, numbers)
    ]
