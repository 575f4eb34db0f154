"""Builds the launcher of tasks (jobq/run/guardian/launcher.c) into a wheel, where there is a compiler for it.

Without one, or with JOBQ_BUILD_PURE=1, the wheel is for every machine, and tasks are forked. The launcher needs no C
library, so its wheel is for each Linux of its processor.
"""

import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "jobq/run/guardian/launcher"
MANUAL = "build/man/jobq.1"
FLAGS = (
    *("-std=gnu11", "-Os", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-builtin", "-fno-stack-protector"),
    *("-fno-asynchronous-unwind-tables", "-fno-ident", "-fno-pie", "-no-pie", "-nostdlib", "-static", "-s"),
    *("-Wl,--build-id=none", "-Wl,-z,noexecstack"),
)


class LauncherBuild(BuildHookInterface[Any]):
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it, and put it into the wheel, or into the sources of an editable installation."""
        is_editable = version == "editable"
        if not is_editable:  # `jobq help` prints them
            pages = sorted(Path(self.root, "docs").glob("*.md"))
            build_data["force_include"] |= {str(page): f"jobq/docs/{page.name}" for page in pages}
            if (manual := Path(self.root, MANUAL)).exists():  # `make dist` makes it, and wants it in what is published
                build_data["shared_data"][str(manual)] = "share/man/man1/jobq.1"
        here = Path(self.root, NAME)
        # In the sources' own folder it may be in use: it is put in its place whole.
        self._folder = tempfile.TemporaryDirectory(dir=here.parent if is_editable else None)
        built = Path(self._folder.name, here.name)
        why = "JOBQ_BUILD_PURE" if os.environ.get("JOBQ_BUILD_PURE") else refusal(here.with_suffix(".c"), built)
        if why:
            self.app.display_warning(f"the launcher is not built, so tasks will be forked: {why}")
            if is_editable:
                here.unlink(missing_ok=True)
        elif is_editable:
            built.replace(here)
        else:
            machine = platform.machine()
            build_data["force_include"][str(built)] = NAME
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """Remove what was built; the wheel has it."""
        self._folder.cleanup()


def refusal(source: Path, built: Path) -> str:
    """Compile it; return why that cannot be done here, empty = it is done."""
    command = [os.environ.get("CC", "cc"), *FLAGS, str(source), "-o", str(built)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        built.chmod(0o755)
    return done.stderr.strip() if done.returncode else ""
