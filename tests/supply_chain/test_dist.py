"""What is published: the same bytes for the same commit, all that is needed and nothing else; it installs and runs."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from .dist import build, faults
from .lock import ROOT

_UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, and the archive of the sources."""
    wheel, sdist = sorted(build(ROOT, tmp_path_factory.mktemp("dist")), key=lambda file: file.suffix != ".whl")
    return wheel, sdist


def test_it_holds_what_is_needed_and_nothing_else(built: tuple[Path, Path]) -> None:
    assert faults(*built) == []


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
    for name in ("jobq", "backends", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, tmp_path / name)
    os.utime(tmp_path / "pyproject.toml", (1, 1))
    before = os.umask(0o077)
    try:
        (wheel,) = build(tmp_path, tmp_path / "built", "wheel")
    finally:
        os.umask(before)
    assert wheel.read_bytes() == built[0].read_bytes()


def test_a_tool_that_is_installed_from_it_runs(built: tuple[Path, Path], tmp_path: Path) -> None:
    """By `uv tool install`, beside nothing of the project's; then as a program and as a module."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("JOBQ_", "VIRTUAL_ENV", "PYTHON"))
    }
    places = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    environment = {**kept, **places, "JOBQ_HOME": str(tmp_path / "home")}

    def run(*words: object) -> str:
        ended = subprocess.run(
            [str(word) for word in words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    run(_UV, "tool", "install", "--quiet", "--python", sys.executable, built[0])
    jobq = tmp_path / "bin/jobq"
    assert run(jobq, "--version").startswith("jobq ")
    run(jobq, "demo", "push", "-c", "echo it runs > done")
    run(tmp_path / "tools/jobq/bin/python", "-m", "jobq", "demo", "worker")
    assert (tmp_path / "done").read_text() == "it runs\n"


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
