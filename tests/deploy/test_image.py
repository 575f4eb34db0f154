"""The image's steps where no container engine runs: wheel, bare environment, a stranger's rights, PID 1, SIGTERM.

The namespaces of processes, mounts and users that `unshare` makes stand for the container.
"""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .files import DEPLOY, ROOT

pytestmark = pytest.mark.check

_NAMESPACES = ("--pid", "--fork", "--kill-child", "--mount", "--mount-proc")
BUDGET_SECONDS = 30.0  # of the strictest platform, Container Apps
USER = 10001


def _can_unshare() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    probe = ["unshare", *_NAMESPACES, "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not _can_unshare(),
    reason="a process namespace and another user need root and unshare, which are not to be had here",
)


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """Build and install as deploy/Dockerfile does; returns the folder of the environment, which others may read."""
    with _open_folder() as folder:
        yield _installed(folder)


@contextmanager
def _open_folder() -> Iterator[Path]:
    """Make a folder that others may read: pytest closes its own to them, whenever another run of it begins."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder


def _installed(folder: Path) -> Path:
    source = folder / "source"
    source.mkdir()
    # Its own steps, at another place: /opt is this folder.
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    build = text[text.index("FROM ${BUILD_IMAGE}") : text.index("FROM ${RUNTIME_IMAGE}")]
    extras = re.search(r"^ARG EXTRAS=(\S+)$", build, re.MULTILINE)
    assert extras is not None
    environment = dict(re.findall(r"(UV_\w+)=(\w+)", build)) | {"EXTRAS": extras[1], "UV_PYTHON": sys.executable}
    for line in build.splitlines():
        verb, _, rest = line.partition(" ")
        if verb == "RUN":
            _run("sh", "-c", rest.replace("/opt/", f"{folder}/"), cwd=source, **environment)
        elif verb == "COPY" and "--from" not in rest:
            for name in rest.split()[:-1]:
                _copy(ROOT / name, source / name)
    return folder / "jobq"


def _copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(path, to)


def _run(*command: str, cwd: Path | None = None, **more: str) -> str:
    # Trust whom this machine trusts, as pip does: an index may be a mirror with a certificate of its own.
    trust = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
    if "PIP_CERT" in os.environ:
        trust["SSL_CERT_FILE"] = os.environ["PIP_CERT"]
    tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=cwd,
        env={**os.environ, **trust, **tools, **more},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow("takes the image's steps")
def test_the_wheel_brings_all_that_the_command_line_needs(image: Path) -> None:
    code = "import jobq_azure, jobq_sqlite, jobq_memory, jobq_postgres, prometheus_client, opentelemetry, pathlib as p"
    _run(str(image / "bin/python"), "-P", "-c", code)
    assert "jobq 0." in _run(str(image / "bin/jobq"), "--version")
    packages = ["jobq", *(f"jobq_{name}" for name in ("azure", "http", "memory", "postgres", "sqlite"))]
    site = Path(_run(str(image / "bin/python"), "-P", "-c", "import jobq; print(jobq.__path__[0])").strip()).parent
    assert [name for name in packages if not (site / name / "py.typed").exists()] == []
    names = _run(
        str(image / "bin/python"),
        "-P",
        "-c",
        "import importlib.metadata as m; print([d.name for d in m.distributions()])",
    )
    assert not {"pytest", "mypy", "ruff", "hypothesis"} & set(ast.literal_eval(names))


class Container:
    """A worker as PID 1 of a namespace: another user, all read-only but /tmp."""

    def __init__(self, image: Path, scratch: Path) -> None:
        self.scratch = scratch
        scratch.mkdir()
        os.chown(scratch, USER, USER)
        self._image = image
        self.started: list[subprocess.Popen[str]] = []

    def argv(self, *arguments: str) -> list[str]:
        mounts = (
            f"{_readable(Path(sys.base_prefix))} mount --bind {self.scratch} {self.scratch} && "
            "mount -o remount,ro,bind / && "
            f'exec setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs -- "$@"'
        )
        entry = [str(self._image / "bin/jobq"), *arguments]
        return ["unshare", *_NAMESPACES, "sh", "-c", mounts, "sh", *entry]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self._image}/bin:/usr/bin:/bin",
            "HOME": str(self.scratch),
            "TMPDIR": str(self.scratch),
            "JOBQ_HOME": str(self.scratch / "queues"),
            "JOBQ_LOG_FORMAT": "json",
            "JOBQ_HEALTH_FILE": str(self.scratch / "jobq-health"),
        }

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            self.argv(*arguments), env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self.argv(*arguments), env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process


def _readable(prefix: Path) -> str:
    """Return the mounts by which another user may read this Python, where it is installed below a closed folder."""
    closed = [parent for parent in reversed(prefix.parents) if not parent.stat().st_mode & 0o001]
    if not closed:
        return ""
    covered = f"mount -t tmpfs -o mode=755 tmpfs {closed[0]} && mkdir -p {prefix}"
    return f"mount --bind {prefix} /mnt && {covered} && mount --bind /mnt {prefix} &&"


@pytest.fixture
def container(image: Path) -> Iterator[Container]:
    with _open_folder() as folder:
        made = Container(image, folder / "scratch")
        yield made
        for process in made.started:  # with the first process of its namespace, all of it ends
            process.kill()
            process.communicate()


@needs_namespaces
def test_a_task_runs_as_a_stranger_on_a_read_only_tree(container: Container) -> None:
    container.run(
        "demo", "push", "-c", 'id -u; touch /usr/x || echo read-only; readlink /proc/1/exe; cat "/proc/$PPID/comm"'
    )
    lines = [json.loads(line) for line in container.run("demo", "worker", "--json").splitlines()]
    printed = [line["line"] for line in lines if line["event"] == "task.output"]
    assert printed[0] == str(USER)
    assert "read-only" in printed
    assert any(line["event"] == "task.succeeded" for line in lines)


@pytest.mark.slow("takes the image's steps")
@needs_namespaces
def test_pid_1_passes_sigterm_on_and_ends_within_the_budget(container: Container) -> None:
    """The watcher is PID 1: a task that ignores SIGTERM is gone in time with its orphans, and is given back."""
    command = "trap '' TERM; (setsid sleep 300 &) ; echo begun; while :; do sleep 0.1; done"
    container.run("demo", "push", "-c", command)
    worker = container.start("demo", "worker", "--json", "--stop-grace", "2s")
    assert worker.stdout is not None
    # Not when a slot is busy: its task is not started then, or ignores no signal yet.
    begun = (line for line in worker.stdout if json.loads(line).get("line") == "begun")
    assert next(begun, None), "it has ended"
    health = container.scratch / "jobq-health"
    while not health.exists() or json.loads(health.read_text())["busy"] != 1:
        assert worker.poll() is None
        time.sleep(0.01)
    (child,) = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    assert Path(f"/proc/{child}/cmdline").read_bytes() == b"watcher\0"
    namespaced = re.search(r"^NSpid:\t\d+\t(\d+)$", Path(f"/proc/{child}/status").read_text(), re.MULTILINE)
    assert namespaced is not None
    assert namespaced[1] == "1"
    stopped = time.monotonic()
    os.kill(int(child), signal.SIGTERM)  # as the container's runtime does
    out, err = worker.communicate(timeout=BUDGET_SECONDS)
    assert time.monotonic() - stopped < BUDGET_SECONDS
    assert worker.returncode == 143, err
    assert "task.preempted" in out + err
    assert '"id"' in container.run("demo", "peek", "--json")  # given back at once
