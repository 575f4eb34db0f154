"""The project hangs together as docs/design/architecture.md draws it: arrows point down, no circle."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import grimp

_ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("jobq", "jobq_azure", "jobq_http", "jobq_memory", "jobq_postgres", "jobq_sqlite")


def test_arrows_point_down() -> None:
    """The layers of `.importlinter`; by its command, for its function silences the loggers of this process."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    linted = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports within functions count, and those for types alone: who reads one file must read what its types name."""
    graph = grimp.build_graph(*_PACKAGES, cache_dir=None)
    left = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := {module for module, imports in left.items() if not imports & left.keys()}:
        left = {module: imports for module, imports in left.items() if module not in free}
    # What is left is in a circle, or imports one.
    while unused := {module for module in left if not any(module in imports for imports in left.values())}:
        left = {module: imports for module, imports in left.items() if module not in unused}
    assert not left
