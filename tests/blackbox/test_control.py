"""What steers tasks: cancel, pause, batches, checkpoints, progress, priority, delay."""

import pytest

from tests.blackbox.support import Bench, until

pytestmark = pytest.mark.check

WAITS = "echo began >> began; until test -e go; do sleep 0.05; done; echo ended >> ended"


def test_cancel_ends_what_waits_and_what_runs(bench: Bench) -> None:
    running, waiting = bench.push("-c", WAITS), bench.push("-c", "echo second >> ended")
    worker = bench.start("q", "worker", "--visibility-timeout", "4s", "--stop-grace", "1s")
    bench.has("began")
    assert {each["id"] for each in bench.objects("q", "cancel", waiting, running)} == {waiting, running}
    bench.ends(worker, 0)
    assert not bench.tasks()
    assert bench.lines("ended") == []
    assert {each["state"] for each in bench.objects("q", "status", running, waiting)} == {"canceled"}
    assert bench.objects("q", "size") == [{"visible": 0, "leased": 0, "scheduled": 0, "dead": 0}]


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(bench: Bench) -> None:
    bench.jobq("q", "push", "-c", "echo ran >> ran")
    bench.jobq("q", "pause", "an update")
    assert bench.objects("q", "stats")[0]["paused"]
    bench.jobq("q", "worker", "--idle-timeout", "1s")
    assert bench.lines("ran") == []
    bench.jobq("q", "resume")
    assert bench.objects("q", "stats")[0]["paused"] is None
    bench.jobq("q", "worker")
    assert bench.lines("ran") == ["ran"]


def test_a_batch_is_pushed_as_a_grid_counted_retried_and_made_a_table(bench: Bench) -> None:
    command = (
        "-c",
        'echo "{\\"sum\\": $(($PARAM_a + $PARAM_b))}" > $JOBQ_RESULT_FILE; test "$PARAM_a" = 1 -o -e mended',
    )
    push = ("q", "push", "--batch", "s", "--num-retries", "0", "--grid", "a=1,2", "--grid", "b=5..6", *command)
    for _ in range(2):  # the same line again queues nothing twice
        bench.jobq(*push)
    assert bench.objects("q", "size")[0]["visible"] == 4
    bench.jobq("q", "worker")
    [shown] = bench.objects("q", "batch", "show", "s")
    assert (shown["state"], shown["total"], shown["counts"]["succeeded"], shown["counts"]["dead"]) == (
        "finished",
        4,
        2,
        2,
    )
    bench.jobq("q", "batch", "wait", "s", code=1)
    (bench.work / "mended").touch()
    bench.jobq("q", "batch", "retry", "s")
    bench.jobq("q", "worker")
    bench.jobq("q", "batch", "wait", "s")
    rows = bench.objects("q", "results", "--batch", "s")
    assert [(row["param.a"], row["param.b"], row["value.sum"]) for row in rows] == [
        (1, 5, 6),
        (1, 6, 7),
        (2, 5, 7),
        (2, 6, 8),
    ]
    bench.jobq("q", "results", "--batch", "s", "-o", "s.csv", "--columns", "param.a,param.b,value.sum")
    assert bench.lines("s.csv") == ["param.a,param.b,value.sum", "1,5,6", "1,6,7", "2,5,7", "2,6,8"]


def test_batch_cancel_ends_all_of_it_and_nothing_else(bench: Bench) -> None:
    bench.push("--batch", "s", "-c", WAITS, "-c", "echo second >> ended")
    bench.jobq("q", "push", "-c", "echo other >> ended")
    worker = bench.start("q", "worker", "--visibility-timeout", "4s", "--stop-grace", "1s")
    bench.has("began")
    bench.jobq("q", "batch", "cancel", "s", "--yes")
    bench.ends(worker, 0)
    assert bench.lines("ended") == ["other"]
    [shown] = bench.objects("q", "batch", "show", "s")
    assert (shown["state"], shown["is_canceled"], shown["counts"]["canceled"]) == ("finished", True, 2)


def test_a_checkpoint_is_found_by_the_next_attempt(bench: Bench) -> None:
    word = 'echo "${JOBQ_CHECKPOINT:-none}" >> ran; jobq checkpoint "epoch $JOBQ_ATTEMPT"; test "$JOBQ_ATTEMPT" = 3'
    task = bench.push("--num-retries", "2", "-c", word)
    bench.jobq("q", "worker", "--backoff", "0s")
    assert bench.lines("ran") == ["none", "epoch 1", "epoch 2"]
    assert bench.objects("q", "status", task)[0]["state"] == "succeeded"


def test_files_of_a_checkpoint_are_found_by_the_next_attempt(bench: Bench) -> None:
    files = (
        'cat "$JOBQ_CHECKPOINT_DIR/f" >> ran; echo saved > "$JOBQ_CHECKPOINT_DIR/f"; jobq checkpoint --dir; test -s ran'
    )
    (bench.work / "store").mkdir()
    bench.push("--num-retries", "1", "-c", files)
    bench.jobq("q", "worker", "--backoff", "0s", "--checkpoint-store", str(bench.work / "store"))
    assert bench.lines("ran") == ["saved"]


def test_progress_is_shown_while_the_task_runs(bench: Bench) -> None:
    task = bench.push("-c", f"jobq progress 0.25 quarter; {WAITS}")
    worker = bench.start("q", "worker", "--visibility-timeout", "4s")
    bench.has("began")

    def shown() -> bool:
        running = bench.objects("q", "status", task)[0]["running"] or {}
        return (running.get("progress"), running.get("text")) == (0.25, "quarter")

    until(shown, "status has the progress")
    (bench.work / "go").touch()
    bench.ends(worker, 0)


def test_priority_and_delay_decide_the_order(bench: Bench) -> None:
    for priority in (0, -5, 5):
        bench.jobq("q", "push", "--priority", str(priority), "-c", f"echo {priority} >> ran")
    bench.jobq("q", "push", "--delay", "5s", "--priority", "-9", "-c", "echo delayed >> ran")
    [size] = bench.objects("q", "size")
    assert (size["visible"], size["scheduled"]) == (3, 1)
    bench.works_until("ran", 4)
    assert bench.lines("ran") == ["5", "0", "-5", "delayed"]
