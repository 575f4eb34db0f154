"""Python tasks, forked from a zygote or not: what they find, how they end, and what they cannot see (P7, A6)."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jobq.errors import ConfigurationError
from jobq.run.process.spawner import StartFailed
from jobq.run.spawn.guardian_spawner import GuardianSpawner
from tests.guardian.spawning import descriptors, guardian_of
from tests.guardian.stage import ROOT, children, rss_anon_bytes, state, until, until_async
from tests.guardian.zygote.warming import MODULE, Stage, carriers, environment, stage

BOTH = pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])


@pytest.fixture
async def zygote() -> AsyncIterator[Stage]:
    async with stage() as made:
        yield made


@BOTH
async def test_what_a_task_finds(zygote: Stage, tmp_path: Path, warm: bool) -> None:
    env = environment(A="b c", TZ="Asia/Tokyo")
    task = await zygote.call("look", warm=warm, launch={"env": env, "cwd": str(tmp_path)})
    status, output = await task.finish()
    assert status.exit_code == 0, output
    found = json.loads(output)
    python_ignores = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert found.pop("env").items() >= env.items()
    assert found == {
        "parent": zygote.guardian,
        "leads": True,
        "death": signal.SIGKILL,
        "reaper": 1,
        "descriptors": ["0", "1", "2"],
        "stdin": "/dev/null",
        "argv": [f"{MODULE}:look"],
        "cwd": str(tmp_path),
        "path": str(tmp_path),
        "signals": [0, python_ignores, 1 << (signal.SIGINT - 1)],
        "name": "look" if warm else found["name"],
        "threads": 1,
        "warm": warm,
        "zone": "JST",
    }


@BOTH
@pytest.mark.parametrize(
    ("function", "kwargs", "code", "number", "says"),
    [
        ("nothing", {"a": [1, None], "b": "ü"}, 0, None, ""),
        ("waits", {"text": "awaited"}, 0, None, "awaited\n"),
        ("length", {"text": "ü" * 400_000}, 0, None, "400000\n"),
        ("end", {"code": 3}, 3, None, ""),
        ("end", {"code": -1}, 255, None, ""),
        ("end", {"code": None}, 0, None, ""),
        ("end", {"code": "no\nluck"}, 1, None, "no\nluck\n"),
        ("fail", {}, 1, None, "ValueError: on purpose"),
        ("fail", {"x": 1}, 1, None, "TypeError: fail() got an unexpected keyword argument 'x'"),
        ("interrupt", {}, None, signal.SIGINT, "KeyboardInterrupt"),
        ("die", {"number": 9}, None, 9, ""),
        ("die", {"number": 15}, None, 15, ""),
        ("late", {}, 0, None, "function thread\natexit\n"),
        ("full", {}, 120, None, "No space left"),
        (
            "gone",
            {},
            1,
            None,
            f"jobq: module '{MODULE}' has no 'gone' (found {ROOT}/tests/guardian/zygote/warm_tasks.py)\n",
        ),
        ("LOADED_BY", {}, 1, None, f"jobq: '{MODULE}:LOADED_BY' is no function"),
        ("no.such:f", {}, 1, None, "jobq: there is no module 'no'; searched /"),
        ("tests.no:f", {}, 1, None, "jobq: there is no module 'tests.no'"),
    ],
)
async def test_p7_how_it_ends(
    zygote: Stage, warm: bool, function: str, kwargs: dict[str, Any], code: int | None, number: int | None, says: str
) -> None:
    status, output = await (await zygote.call(function, warm=warm, **kwargs)).finish()
    assert (status.exit_code, status.signal) == (code, number), output
    assert says in output
    assert "jobq/run" not in output
    assert "Traceback" not in says or "warm_tasks.py" in output


@BOTH
async def test_an_import_that_fails_shows_its_own_lines_alone(zygote: Stage, tmp_path: Path, warm: bool) -> None:
    (tmp_path / "broken.py").write_text("import no_such_thing\n")
    task = await zygote.call("broken:f", warm=warm, launch={"cwd": str(tmp_path)})
    status, output = await task.finish()
    assert status.exit_code == 1
    assert output.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path}/broken.py", line 1, in <module>',
        "    import no_such_thing",
        "ModuleNotFoundError: No module named 'no_such_thing'",
    ]


@BOTH
async def test_p7_a_folder_that_is_not_there(zygote: Stage, warm: bool) -> None:
    with pytest.raises(StartFailed, match="working directory '/no/such' does not exist"):
        await zygote.call("nothing", warm=warm, launch={"cwd": "/no/such"})


async def test_a_folder_with_a_module_of_that_name_is_the_tasks_own(zygote: Stage, tmp_path: Path) -> None:
    """Preloaded or not: the task's folder comes first, as for a new Python; so the task becomes one."""
    (tmp_path / "random.py").write_text("import os\ndef f(): print('mine', os.environ['A'])\n")
    launch = {"cwd": str(tmp_path), "env": environment(A="b")}
    status, output = await (await zygote.call("random:f", launch=launch)).finish()
    assert (status.exit_code, output) == (0, "mine b\n")
    (tmp_path / "random.py").unlink()
    (tmp_path / "random").mkdir()  # data: no package
    _, output = await (await zygote.call("look", launch=launch)).finish()
    assert json.loads(output)["warm"]


async def test_each_has_random_numbers_of_its_own(zygote: Stage) -> None:
    outputs = [(await (await zygote.call("number")).finish())[1] for _ in range(4)]
    assert len(set(outputs)) == 4


async def test_a6_no_task_sees_what_another_was_given(zygote: Stage) -> None:
    secret = os.urandom(20).hex()
    for warm in (True, False):
        launch = {"env": environment(SECRET=secret)}
        status, output = await (await zygote.call("remember", warm=warm, launch=launch, secret=secret)).finish()
        assert status.exit_code == 0, output
    _, output = await (await zygote.call("search", reverse=secret[::-1])).finish()
    assert output == "0\n"
    _, output = await (await zygote.call("search", reverse=secret[::-1], launch=launch)).finish()
    assert int(output) > 0, "it finds what is there"
    shown = Path(f"/proc/{zygote.zygote}/environ").read_bytes()
    assert secret.encode() not in shown


@pytest.mark.parametrize(
    ("module", "source", "why"),
    [
        ("no_such_module", "", "no_such_module: there is no module 'no_such_module'; searched "),
        ("m", "raise ValueError('so')", "m: ValueError: so"),
        ("m", "raise SystemExit(3)", "m: SystemExit: 3"),
        (
            "m",
            "import threading, time; threading.Thread(target=time.sleep, args=[99]).start(); 1 / 0",
            "m: ZeroDivisionError",
        ),
        ("m", "import os; os._exit(5)", "it ended with exit code 5 while it imported"),
        ("m", "import os; os.kill(os.getpid(), 11)", "signal 11 killed it while it imported"),
        ("m", "import os; os.closerange(3, 100); os.kill(os.getpid(), 19)", "signal 9 killed it while it imported"),
        ("m", "import os, sys; os.write(int(sys.argv[1]), b'x' * 99); import time; time.sleep(99)", "nonsense"),
    ],
)
async def test_what_cannot_be_preloaded_is_an_error(tmp_path: Path, module: str, source: str, why: str) -> None:
    (tmp_path / "m.py").write_text(source)
    async with GuardianSpawner() as spawner:
        with pytest.raises(ConfigurationError, match="cannot preload ") as raised:
            await asyncio.wait_for(spawner.preload([module], environment(PYTHONPATH=f"{ROOT}:{tmp_path}")), 20)
        assert why in str(raised.value)
        await until_async(lambda: children(guardian_of(spawner)) == [])


async def test_p5_leaving_ends_an_import(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import subprocess, time\nsubprocess.Popen(['sleep', '99'])\ntime.sleep(99)")
    async with GuardianSpawner() as spawner:
        env = environment(PYTHONPATH=f"{ROOT}:{tmp_path}", MARK=str(tmp_path))
        waiting = asyncio.create_task(spawner.preload(["m"], env))
        await until_async(lambda: len(carriers(str(tmp_path))) == 2)
    with pytest.raises(ConfigurationError):
        await waiting
    until(lambda: carriers(str(tmp_path)) == [], 1)


async def test_p5_200_tasks_8_at_once_leave_nothing(zygote: Stage) -> None:
    async def slot(numbers: range) -> None:
        for number in numbers:
            status, _ = await (await zygote.call("end", code=number)).finish()
            assert status.exit_code == number

    await slot(range(1))
    pid = zygote.zygote
    before = descriptors(), descriptors(zygote.guardian), descriptors(pid), rss_anon_bytes(pid)
    await asyncio.gather(*(slot(range(first, 200, 8)) for first in range(8)))
    await until_async(lambda: (descriptors(), descriptors(zygote.guardian), descriptors(pid)) == before[:3])
    assert children(zygote.guardian) == [pid]
    assert rss_anon_bytes(zygote.guardian) <= 10_000_000
    assert rss_anon_bytes(pid) < before[3] + 2_000_000


async def test_the_zygote_keeps_nothing_of_a_running_task(zygote: Stage) -> None:
    before = descriptors(zygote.zygote), descriptors(zygote.guardian)
    tasks = [await zygote.call("sleep") for _ in range(20)]
    for task in tasks:
        assert await task.line() == "up"
    await until_async(lambda: (descriptors(zygote.zygote), descriptors(zygote.guardian)) == before)
    await until_async(lambda: state(zygote.zygote) == "S")
    for task in tasks:
        task.process.kill()
    for task in tasks:
        assert (await task.finish())[0].signal == signal.SIGKILL


async def test_descriptors_that_an_import_opened_stay_open(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("f = open(__file__)\ndef read(): print(f.fileno() > 2, len(f.read()))\n")
    async with stage("m", PYTHONPATH=f"{ROOT}:{tmp_path}") as made:
        assert (await (await made.call("m:read")).finish())[1] == f"True {(tmp_path / 'm.py').stat().st_size}\n"


async def test_threads_that_an_import_starts_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = "import threading, time\nthreading.Thread(target=time.sleep, args=[99], daemon=True).start()\nprint('hi')"
    (tmp_path / "m.py").write_text(source)
    async with stage("m", PYTHONPATH=f"{ROOT}:{tmp_path}") as made:
        assert (await (await made.call("nothing")).finish())[0].exit_code == 0
    shown = capfd.readouterr()
    assert "1 threads run since m was imported" in shown.err
    assert "hi" in shown.err  # what imports print is no output of a task, nor of the worker
    assert shown.out == ""


@pytest.mark.parametrize("holds", [True, False])
async def test_nothing_is_forked_from_an_import_that_has_taken_a_gpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, holds: bool
) -> None:
    """What was forked could not use it: tasks start cold, and the worker says why and what to do, once.

    A driver keeps its device open from the first use on; a file stands for the device.
    """
    device = tmp_path / "gpu0"
    device.touch()
    source = (
        "import os, sys\n"
        f"sys.modules['__main__'].GPU_DEVICES = ({str(tmp_path / 'gpu')!r},)\n"
        f"taken = open({str(device)!r})\n"
        f"if not {holds}: taken.close()\n"
        "loaded_by = os.getpid()\n"
        "def is_warm(): print(loaded_by != os.getpid())\n"
    )
    (tmp_path / "m.py").write_text(source)
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    async with stage("m", **path) as made:
        for _ in range(2):
            task = await made.call("m:is_warm", warm=True, launch={"env": environment(**path)})
            status, output = await task.finish()
            assert (status.exit_code, output) == (0, f"{not holds}\n")
        await until_async(lambda: len(children(made.guardian)) == (0 if holds else 1))
    said = [record.message for record in caplog.records]
    assert len(said) == holds
    if holds:
        assert f"{device} is open once m is imported" in said[0]
        assert "Python tasks start cold" in said[0]
        assert "initialise CUDA in the function" in said[0]


async def test_a_zygote_that_talks_nonsense_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = 'import os, sys\nwhile True: os.write(int(sys.argv[1]), bytes(3) + b\'\\x0e{"op":"ready"}\')'
    (tmp_path / "m.py").write_text(source)
    async with stage("m", PYTHONPATH=f"{ROOT}:{tmp_path}") as made:
        await until_async(lambda: children(made.guardian) == [])
        assert (await (await made.call("end", code=4)).finish())[0].exit_code == 4
        assert "it sent nonsense" in caplog.text
