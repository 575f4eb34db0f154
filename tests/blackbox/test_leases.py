"""Named leases: a command that is alone under its name, and ends with its lease."""

import pytest

from tests.blackbox.support import Bench, kill, until

pytestmark = pytest.mark.check

HELD = 75
WAITS = "echo $JOBQ_LEASE_TOKEN >> tokens; until test -e go; do sleep 0.05; done"


def test_a_name_has_one_holder_and_its_token_rises(bench: Bench) -> None:
    holder = bench.start("q", "lease", "run", "nightly", "--", "sh", "-c", WAITS)
    bench.has("tokens")
    bench.jobq("q", "lease", "run", "nightly", "--no-wait", "--", "touch", "both", code=HELD)
    bench.jobq("q", "lease", "run", "nightly", "--wait-at-most", "1s", "--", "touch", "both", code=HELD)
    bench.jobq("q", "lease", "run", "nightly", "--no-wait", "--conflict-exit-code", "9", "--", "true", code=9)
    bench.jobq("q", "lease", "run", "weekly", "--no-wait", "--", "touch", "other")
    [shown] = bench.objects("q", "lease", "show", "nightly")
    assert bench.lines("tokens") == [str(shown["token"])]
    waits = bench.start("q", "lease", "run", "nightly", "--", "sh", "-c", WAITS)
    (bench.work / "go").touch()
    bench.ends(holder, 0)
    bench.ends(waits, 0)
    first, second = map(int, bench.lines("tokens"))
    assert first < second
    assert not (bench.work / "both").exists()
    states = {each["name"]: each["state"] for each in bench.objects("q", "lease", "list")}
    assert states == {"nightly": "released", "weekly": "released"}


def test_lease_run_ends_as_its_command(bench: Bench) -> None:
    bench.jobq("q", "lease", "run", "n", "--", "sh", "-c", "exit 7", code=7)
    bench.jobq("q", "lease", "run", "n", "--", "sh", "-c", "kill -9 $$", code=137)
    bench.jobq("q", "lease", "run", "n", "--", "/nosuchprogram", code=127)


def test_sigterm_is_passed_on_to_the_command(bench: Bench) -> None:
    command = "trap 'echo told >> told; exit 5' TERM; echo began >> began; while :; do sleep 0.05; done"
    holder = bench.start("q", "lease", "run", "n", "--", "sh", "-c", command)
    bench.has("began")
    holder.terminate()
    bench.ends(holder, 5)
    assert bench.lines("told") == ["told"]


def test_a_lease_that_is_ended_from_outside_kills_its_command(bench: Bench) -> None:
    holder = bench.start("q", "lease", "run", "n", "--ttl", "4s", "--", "sh", "-c", "echo began >> began; sleep 300")
    bench.has("began")
    bench.jobq("q", "lease", "release", "n")
    bench.ends(holder, HELD)


def test_a_killed_lease_run_leaves_no_process_and_frees_its_name(bench: Bench) -> None:
    command = ("env", f"BLACKBOX_TASK={bench.mark}", "sh", "-c", "echo began >> began; setsid sleep 300 & sleep 300")
    holder = bench.start("q", "lease", "run", "n", "--ttl", "4s", "--", *command)
    bench.has("began")
    kill({holder.pid})
    until(lambda: not bench.tasks(), "no process of the command lives", 8)
    bench.jobq("q", "lease", "run", "n", "--ttl", "4s", "--wait-at-most", "20s", "--", "touch", "next")
    assert (bench.work / "next").exists()


def test_an_interrupted_push_goes_on_and_queues_nothing_twice(bench: Bench) -> None:
    (bench.work / "tasks").write_text("".join(f"echo {number} >> ran\n" for number in range(20)))
    for _ in range(2):
        bench.jobq("q", "push", "--resume", "monday", "tasks")
    with (bench.work / "tasks").open("a") as file:
        file.write("echo 20 >> ran\n")
    bench.jobq("q", "push", "--resume", "monday", "tasks")
    bench.jobq("q", "worker")
    assert bench.lines("ran") == [str(number) for number in range(21)]
