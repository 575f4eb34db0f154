"""Python tasks from the command line: what `push` takes, what a worker makes of it, and the page that tells of it."""

import json

import pytest

from tests.cli.conftest import Jobq

MODULE = """
import asyncio, os, sys
def look(n=0, text=""):
    print(n, text, os.environ["JOBQ_TASK_ID"] != "", os.environ.get("A"))
async def wait(n):
    await asyncio.sleep(0)
    print("waited", n)
def fail():
    raise ValueError("on purpose")
"""


@pytest.fixture
def project(jobq: Jobq) -> Jobq:
    (jobq.folder / "project.py").write_text(MODULE)
    return jobq


def outputs(shown: str) -> list[str]:
    return [line.partition(" | ")[2] for line in shown.splitlines()]


def test_push_makes_a_task_of_a_function(jobq: Jobq) -> None:
    jobq(
        "demo",
        "push",
        "--call",
        "package.module:function",
        "--kwargs",
        '{"n": [1, "ü"]}',
        "--id",
        "x",
        "--timeout",
        "5",
    )
    jobq("demo", "push", "--call", "m:C.f")
    jobq("demo", "push", "-", stdin='{"call": "m:f", "kwargs": {"n": 1}}\n{"call": "m:f"}\n')
    first, second, third, fourth = jobq.waiting()
    assert (first.call, first.kwargs, first.id, first.timeout) == ("package.module:function", {"n": [1, "ü"]}, "x", 5)
    assert (second.call, second.kwargs) == ("m:C.f", None)
    assert (third.call, third.kwargs, fourth.kwargs) == ("m:f", {"n": 1}, None)
    shown = jobq("demo", "peek", "-n", "4")
    assert 'package.module:function {"n":[1,"ü"]}' in shown.out
    assert jobq("demo", "push", "--call", "m:C.f", "--id", "x", code=1).err.startswith("jobq: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--call", "f"], "'--call': 'f' must name a function as package.module:function"),
        (["--call", "m:f()"], "must name a function as package.module:function"),
        (["--call", "m:f", "--kwargs", "{n: 1}"], "'--kwargs': character 1: not JSON"),
        (["--call", "m:f", "--kwargs", "[1]"], """'--kwargs': must be a JSON object, such as '{"n": 1}'"""),
        (["--call", "m:f", "--kwargs", '{"n": NaN}'], "NaN is not a JSON number"),
        (["--call", "m:f", "--kwargs", '{"n": 1, "n": 2}'], "key stands twice"),
        (["--kwargs", "{}"], "--kwargs are the arguments of a function: name it with --call"),
        (["--call", "m:f", "-c", "true"], "tasks come from one place"),
        (["--call", "m:f", "--", "true"], "tasks come from one place"),
        (["--call", "m:f", "file"], "tasks come from one place"),
    ],
)
def test_push_says_what_is_wrong(jobq: Jobq, arguments: list[str], says: str) -> None:
    assert says in jobq("demo", "push", *arguments, code=2).err
    assert not jobq.file.exists()


@pytest.mark.parametrize("options", [[], ["--guardian", "off"]], ids=["on", "off"])
def test_a_worker_calls_it(project: Jobq, options: list[str]) -> None:
    project("demo", "push", "--call", "project:look", "--kwargs", '{"n": 1, "text": "ü"}', "--env", "A=b")
    project("demo", "push", "--call", "project:wait", "--kwargs", '{"n": 2}')
    project("demo", "push", "--call", "project:fail", "--num-retries", "0")
    project("demo", "push", "--call", "project:gone", "--num-retries", "0")
    result = project("demo", "worker", "--log-format", "text", *options)
    shown = outputs(result.out)
    assert "1 ü True b" in shown
    assert "waited 2" in shown
    assert "ValueError: on purpose" in shown
    assert f"jobq: module 'project' has no 'gone' (found {project.folder}/project.py)" in shown
    assert "succeeded=2, failed=2, dead_lettered=2" in result.err


@pytest.mark.parametrize("options", [[], ["--guardian", "off"]], ids=["on", "off"])
def test_a7_no_user_of_the_machine_reads_arguments_in_ps(jobq: Jobq, options: list[str]) -> None:
    """Nor do they stay in a file that the function's process has read."""
    (jobq.folder / "spy.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "def look(text, secret):\n"
        "    lines = [path.read_bytes() for path in Path('/proc').glob('[0-9]*/cmdline') if path.exists()]\n"
        "    folder = Path(os.environ['JOBQ_RESULT_FILE']).parent\n"
        "    files = [path.name for path in folder.glob('*.json')]\n"
        "    print(len(text), len(secret), any(secret.encode() in line for line in lines), files)\n"
    )
    kwargs = json.dumps({"text": "ü" * 100_000, "secret": "canary-of-arguments"})
    jobq("demo", "push", "-", stdin=f'{{"call": "spy:look", "kwargs": {kwargs}}}\n')
    result = jobq("demo", "worker", "--log-format", "text", *options)
    assert outputs(result.out) == ["100000 19 False []"]


def test_s11_what_a_function_makes_of_the_workers_folder_is_no_fault_of_its_own(jobq: Jobq) -> None:
    """It has ended well; its outcome was lost when its arguments could not be removed, and it ran again."""
    (jobq.folder / "vandal.py").write_text(
        "import os, shutil\nfrom pathlib import Path\n"
        "def spoil(n):\n"
        "    folder = Path(os.environ['JOBQ_RESULT_FILE']).parent\n"
        "    shutil.rmtree(folder)\n"
        "    folder.write_text('')\n"
    )
    jobq("demo", "push", "--call", "vandal:spoil", "--kwargs", '{"n": 1}')
    result = jobq("demo", "worker", "--log-format", "text")
    assert "succeeded=1, failed=0, dead_lettered=0, given_back=0, lost=0" in result.err
