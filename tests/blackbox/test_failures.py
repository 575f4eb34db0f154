"""What fails is tried again, becomes a dead letter, and is put back or thrown away."""

import pytest

from tests.blackbox.support import Bench

pytestmark = pytest.mark.check


def test_retries_then_a_dead_letter_that_is_put_back(bench: Bench) -> None:
    bench.jobq("q", "push", "--id", "bad", "--num-retries", "2", "-c", "echo $JOBQ_ATTEMPT >> ran; test -e mended")
    bench.jobq("q", "worker", "--backoff", "0s")
    assert bench.lines("ran") == ["1", "2", "3"]
    [listed], [shown] = bench.objects("q", "dead", "list"), bench.objects("q", "dead", "show", "bad")
    assert (listed["id"], listed["reason"], listed["deliveries"]) == ("bad", "failed", 3)
    assert [each["exit_code"] for each in shown["attempts"]] == [1, 1, 1]
    assert bench.objects("q", "size")[0]["dead"] == 1
    (bench.work / "mended").touch()
    assert bench.objects("q", "dead", "retry", "--all") == [{"id": "bad"}]
    bench.jobq("q", "worker", "--backoff", "0s")
    assert bench.objects("q", "dead", "list") == []
    assert len(bench.lines("ran")) == 4


def test_dead_letters_are_chosen_grouped_and_purged(bench: Bench) -> None:
    for number, code in enumerate((3, 3, 5)):
        bench.jobq("q", "push", "--id", f"d{number}", "--num-retries", "0", "-c", f"exit {code}")
    bench.jobq("q", "worker")
    assert sorted(each["count"] for each in bench.objects("q", "dead", "list", "--group-by", "exit")) == [1, 2]
    assert bench.objects("q", "dead", "retry", "--where", "exit=5") == [{"id": "d2"}]
    assert bench.objects("q", "dead", "purge", "d0") == [{"id": "d0"}]
    assert bench.objects("q", "dead", "purge", "--all", "--yes") == [{"id": "d1"}]
    assert bench.objects("q", "size") == [{"visible": 1, "leased": 0, "scheduled": 0, "dead": 0}]
    bench.jobq("q", "dead", "show", "d0", code=4)


@pytest.mark.parametrize(
    ("rule", "command", "starts"),
    [
        ("3=fail", "exit 3", 1),
        ("3=fail", "exit 4", 3),
        ("SIGKILL=fail", "kill -9 $$", 1),
        ("timeout=fail", "sleep 60", 1),
    ],
)
def test_exit_rules(bench: Bench, rule: str, command: str, starts: int) -> None:
    options = ("--num-retries", "2", "--on-exit", rule, "--timeout", "1s" if "timeout" in rule else "1m")
    bench.jobq("q", "push", *options, "-c", f"echo ran >> ran; {command}")
    bench.jobq("q", "worker", "--backoff", "0s")
    assert len(bench.lines("ran")) == starts
    assert bench.objects("q", "size")[0]["dead"] == 1


def test_an_exit_rule_delays_the_next_attempt(bench: Bench) -> None:
    task = 'date +%s%N >> ran; test "$JOBQ_ATTEMPT" != 1 || exit 3'
    bench.jobq("q", "push", "--num-retries", "1", "--on-exit", "3=delay:2s", "-c", task)
    bench.jobq("q", "worker")
    first, second = map(int, bench.lines("ran"))
    assert second - first > 1.9e9  # nanoseconds


def test_the_reasons_of_dead_letters(bench: Bench) -> None:
    once = ("--num-retries", "0", "--max-crashes", "0")
    bench.jobq("q", "push", "--id", "failed", *once, "-c", "exit 1")
    bench.jobq("q", "push", "--id", "timed_out", *once, "--timeout", "1s", "-c", "sleep 60")
    bench.jobq("q", "push", "--id", "crashed", *once, "-c", "kill -SEGV $$")
    bench.jobq("q", "worker", "-n", "3")
    assert {each["id"]: each["reason"] for each in bench.objects("q", "dead", "list")} == {
        each: each for each in ("failed", "timed_out", "crashed")
    }
