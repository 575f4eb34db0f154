"""What is published: the same bytes for the same commit, all that is needed and nothing else; it installs and runs."""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests import versions

from .dist import build, faults, make_manual
from .lock import ROOT

pytestmark = pytest.mark.check


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, and the archive of the sources."""
    make_manual()
    wheel, sdist = sorted(build(ROOT, tmp_path_factory.mktemp("dist")), key=lambda file: file.suffix != ".whl")
    return wheel, sdist


def test_it_holds_what_is_needed_and_nothing_else(built: tuple[Path, Path]) -> None:
    assert faults(*built) == []


def test_one_without_the_launcher_is_for_every_machine(built: tuple[Path, Path], tmp_path: Path) -> None:
    (pure,) = build(ROOT, tmp_path, "wheel", pure=True)
    assert pure.name.endswith("-py3-none-any.whl")
    assert faults(pure, built[1]) == []
    if shutil.which(os.environ.get("CC", "cc")) is not None:
        assert f"_{platform.machine()}.whl" in built[0].name


def test_what_is_missing_or_too_much_is_found(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = built
    spoilt = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(spoilt, "w") as archive:
        for name in whole.namelist():
            if name != "jobq_sqlite/schema.sql" and not name.endswith("LICENSE"):
                archive.writestr(name, whole.read(name))
        archive.writestr("jobq/secret.env", "")
    assert faults(spoilt, sdist) == [
        f"{wheel.name} lacks jobq_sqlite/schema.sql",
        f"{wheel.name} has jobq/secret.env, which nobody asked for",
        f"{wheel.name} lacks its licence",
        f"{sdist.name} builds another wheel",
    ]


def test_the_same_commit_gives_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    """In another folder, by another user's umask, with other times of files."""
    for name in (
        "jobq",
        "backends",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "docs",
        "build/man",
        "hatch_build.py",
        ".gitignore",
    ):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, tmp_path / name)
    os.utime(tmp_path / "pyproject.toml", (1, 1))
    before = os.umask(0o077)
    try:
        (wheel,) = build(tmp_path, tmp_path / "built", "wheel")
    finally:
        os.umask(before)
    assert wheel.read_bytes() == built[0].read_bytes()


class Newcomer:
    """Somebody on a machine with a Python and the least of a Unix: no compiler, no Node, no locale, no terminal.

    Args:
        folder: in which all of it is; HOME is new and empty.
        python: that is there.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self._python = python
        (folder / "home").mkdir()
        (folder / "bin").mkdir()
        for name in ("sh", "bash", "env", "seq", "sed", "cat", "sleep", "true", "false", "echo"):
            (folder / "bin" / name).symlink_to(str(shutil.which(name)))
        self._environment = {"HOME": str(folder / "home"), "PATH": f"{folder}/venv/bin:{folder}/bin"}

    def install(self, wheel: Path) -> None:
        """By the pip of a new environment, with the index that this machine is told of."""
        for command in (
            [self._python, "-m", "venv", str(self.folder / "venv")],
            [str(self.folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", str(wheel)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr

    def types(self, line: str, *, code: int = 0) -> str:
        """Return what a command line prints, which must end so."""
        done = subprocess.run(
            [str(self.folder / "bin/bash"), "-c", line],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, (line, done)
        assert "Traceback" not in done.stderr
        return done.stdout


@pytest.mark.parametrize(
    "minor",
    [
        pytest.param(
            minor,
            marks=[] if minor == sys.version_info.minor else [pytest.mark.night],
            id=f"3.{minor}",
        )
        for minor in range(11, 15)
    ],
)
def test_the_first_hour_on_a_bare_machine(built: tuple[Path, Path], tmp_path: Path, minor: int) -> None:
    """What the README begins with, as printed there."""
    python = sys.executable if minor == sys.version_info.minor else versions.find(minor)
    if python is None:
        pytest.skip(f"no Python 3.{minor} on this machine")
    newcomer = Newcomer(tmp_path, python)
    newcomer.install(built[0])
    assert newcomer.types("jobq --version").startswith("jobq ")
    way = "fork" if built[0].name.endswith("-any.whl") else "launcher"
    assert f"in use: {way} " in newcomer.types("jobq config")
    newcomer.types("seq 3 | sed 's/^/echo task /' | jobq demo push -")
    newcomer.types("echo 'echo grün > file' > tasks.txt; jobq demo push tasks.txt")
    newcomer.types("jobq demo push --num-retries 0 -- false")
    assert "5" in newcomer.types("jobq demo size")
    assert newcomer.types("jobq demo peek -n 3").count("echo task") == 3
    shown = newcomer.types("jobq demo worker -n 2 2>&1")
    assert all(f"task {number}" in shown for number in range(1, 4))
    assert (tmp_path / "file").read_text(encoding="utf-8") == "grün\n"
    assert "failed" in newcomer.types("jobq demo dead list")
    newcomer.types("jobq demo dead retry --all")
    newcomer.types("jobq demo worker --max-tasks 1")
    assert sorted(newcomer.types("seq 3 | sed 's/^/echo /' | jobq run -n 2 2>/dev/null").split()) == ["1", "2", "3"]
    assert newcomer.types("python -m jobq --version").startswith("jobq ")


@pytest.mark.night("installs from the index by other tools")
@pytest.mark.parametrize("tool", ["uv", "pipx"])
def test_it_is_a_tool_of_its_own(built: tuple[Path, Path], tmp_path: Path, tool: str) -> None:
    """`uv tool install` and `pipx run`, as a user without an environment has them."""
    program = shutil.which(tool, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"no {tool} on this machine")
    certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    trust = {"SSL_CERT_FILE": certificates, "PIP_CERT": certificates} if certificates else {}
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "UV_NATIVE_TLS": "1", **trust}
    words = {
        "uv": ["tool", "install", "--quiet", "--python", sys.executable, str(built[0])],
        "pipx": ["run", "--python", sys.executable, "--spec", str(built[0]), "jobq", "--version"],
    }
    ran = subprocess.run([program, *words[tool]], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran
    if tool == "uv":
        installed = [str(tmp_path / ".local/bin/jobq"), "--version"]
        ran = subprocess.run(installed, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("jobq "), ran


def test_a_release_is_published_without_a_secret() -> None:
    """By trusted publishing: the index trusts this workflow of this repository, and nobody holds a key."""
    text = (ROOT / ".github/workflows/release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` so
    assert "secrets." not in text
    assert workflow["permissions"] == {}
    permissions = {name: job.get("permissions", {}) for name, job in workflow["jobs"].items()}
    assert permissions == {"build": {"contents": "read"}, "publish": {"id-token": "write"}}
    assert re.findall(r"run: (make .*)", text) == ["make check", "make dist"]
