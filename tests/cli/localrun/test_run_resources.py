"""`jobq run --cpus --gpus --mem`: each job takes so much of this machine."""

import json
import os
from pathlib import Path

from tests.cli.conftest import Jobq


def test_each_job_has_a_card_of_its_own(jobq: Jobq) -> None:
    script = 'mkdir "card-$CUDA_VISIBLE_DEVICES" || exit 9; sleep 0.1; test $ARG_1; rmdir "card-$CUDA_VISIBLE_DEVICES"'
    values = [str(number) for number in range(8)]
    done = jobq("run", "--gpus", "1", "-n", "8", "-c", script, ":::", *values, env={"JOBQ_OFFER_GPUS": "0,1"})
    assert "8 done, 0 failed" in done.err


def test_as_many_run_as_fit(jobq: Jobq) -> None:
    """Without -n, which would be one at a time: all of them meet."""
    count = len(os.sched_getaffinity(0)) * 2
    meet = f"touch $ARG_1; for _ in $(seq 200); do test $(ls ?? | wc -l) = {count} && exit 0; sleep 0.05; done; exit 9"
    values = [str(number) for number in range(10, 10 + count)]
    done = jobq("run", "--cpus", "0.5", "-c", meet, ":::", *values)
    assert f"{count} done, 0 failed" in done.err


def test_what_no_job_could_have_is_refused_before_anything_runs(jobq: Jobq) -> None:
    said = jobq("run", "--gpus", "1", "--", "echo", "{}", ":::", "a", code=3, env={"CUDA_VISIBLE_DEVICES": ""})
    assert "each job asks for gpus=1, and this machine has less (`jobq config` says why)" in said.err
    assert not said.out


def test_a_line_may_ask_for_its_own(jobq: Jobq) -> None:
    lines = [{"command": 'echo "$JOBQ_CPUS $JOBQ_MEMORY"', "cpus": 0.25}, {"command": 'echo "$JOBQ_CPUS"', "gpus": 1}]
    given = "".join(f"{json.dumps(line)}\n" for line in lines)
    assert "0.25 67108864" in jobq("run", "--cpus", "1", "--mem", "64M", stdin=given.splitlines()[0] + "\n").out
    said = jobq("run", "--cpus", "1", stdin=given, code=2).err
    assert "line 2: asks for gpus=1, which this run does not offer: give the run --cpus, --gpus or --mem" in said


def test_who_resumes_offers_what_it_began_with(jobq: Jobq, tmp_path: Path) -> None:
    """Else what is left would wait for ever; nothing of it is lost by the refusal."""
    file = ("--queue-file", str(tmp_path / "jobs.db"))
    jobq(
        "run",
        "--cpus",
        "1",
        *file,
        "-c",
        'test "$ARG_1" != b || test -e go',
        ":::",
        "a",
        "b",
        "c",
        code=1,
    )
    said = jobq("run", *file, "--resume-failed", code=3).err
    assert "cpus=1 (1); go on with the options --cpus, --gpus and --mem that it began with" in said
    (jobq.folder / "go").touch()
    assert "1 done, 0 failed" in jobq("run", "--cpus", "1", *file, "--resume-failed").err
