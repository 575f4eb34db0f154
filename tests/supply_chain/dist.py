"""Builds what is published, and checks it: `python -m tests.supply_chain.dist FOLDER`, or `make dist`.

The same commit gives the same bytes, wherever and whenever it is built: times in archives are the commit's
(SOURCE_DATE_EPOCH, reproducible-builds.org), and a wheel that is built from the sources' archive is that of the folder.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from hatch_build import MANUAL, NAME

from .lock import ROOT

_PACKAGES: Final = ("jobq", *(f"backends/{folder.name}" for folder in sorted((ROOT / "backends").glob("jobq_*"))))
_KINDS: Final = frozenset({".py", ".sql", ".typed", ".html", ".css", ".js", ".svg", ".txt"})
_FOR_ALL: Final = "-none-any.whl"


def build(source: Path, folder: Path, *kinds: str, pure: bool = False) -> list[Path]:
    """Build from a folder of sources, and return what is in the folder then.

    Args:
        source: has pyproject.toml.
        folder: of what is built.
        kinds: `wheel`, `sdist`; both by default.
        pure: without the launcher, so that the wheel is for every machine.

    Raises:
        CalledProcessError: it cannot be built.
    """
    options = [f"--target={kind}" for kind in kinds]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(_committed()), "JOBQ_BUILD_PURE": "1" if pure else ""}
    command = [sys.executable, "-m", "hatchling", "build", f"--directory={folder}", *options]
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.iterdir())


def make_manual() -> None:
    """Make the manual page where a build looks for it."""
    made = (ROOT / MANUAL).parent
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-E",
        "-W",
        "-b",
        "man",
        "-d",
        str(made / "trees"),
        "docs",
        str(made),
    ]
    subprocess.run(command, cwd=ROOT, check=True)


def faults(wheel: Path, sdist: Path) -> list[str]:
    """Return what is wrong with what was built; nothing for what may be published."""
    wanted = {
        str(file.relative_to(ROOT)).removeprefix("backends/")
        for package in _PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.suffix in _KINDS
    }
    wanted |= {f"jobq/docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    if not (pure := wheel.name.endswith(_FOR_ALL)):
        wanted.add(NAME)
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        shared = {name for name in packed if name.endswith(".data/data/share/man/man1/jobq.1")}
        infos = [name for name in archive.namelist() if ".dist-info/" in name]
        texts = b"".join(archive.read(name) for name in infos)
    found = [f"{wheel.name} lacks {name}" for name in sorted(wanted - packed)]
    if not shared:
        found.append(f"{wheel.name} lacks the manual page")
    found += [f"{wheel.name} has {name}, which nobody asked for" for name in sorted(packed - wanted - shared)]
    if not any(name.endswith("/licenses/LICENSE") for name in infos):
        found.append(f"{wheel.name} lacks its licence")
    if str(ROOT).encode() in texts:
        found.append(f"{wheel.name} names a folder of this machine")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as sources:
            sources.extractall(folder, filter="data")
        (extracted,) = Path(folder).iterdir()
        (again,) = build(extracted, Path(folder) / "built", "wheel", pure=pure)
        if again.read_bytes() != wheel.read_bytes():
            found.append(f"{sdist.name} builds another wheel")
    return found


def _committed() -> int:
    """Return when the last commit was made, in seconds since the epoch."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    log = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    return int(log.stdout)


def main(folder: Path) -> int:
    """Build into a folder, check, and print a digest of each file; return the exit code.

    There is a wheel for this processor, where there is a compiler, and one for all.
    """
    make_manual()
    for former in folder.glob("jobq-*"):
        former.unlink()
    build(ROOT, folder, "wheel")
    built = build(ROOT, folder, pure=True)
    sdist, *wheels = sorted(built, key=lambda file: file.suffix != ".gz")
    found = [fault for wheel in wheels for fault in faults(wheel, sdist)]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    for file in built:
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
