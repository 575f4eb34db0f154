"""The project hangs together as docs/design/architecture.md draws it: arrows point down, no circle when it runs."""

from pathlib import Path
from typing import Final

import grimp
import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

_ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("jobq", "jobq_azure", "jobq_http", "jobq_memory", "jobq_postgres", "jobq_sqlite")


def test_arrows_point_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of `.importlinter`."""
    monkeypatch.chdir(_ROOT)
    assert lint_imports(no_cache=True) == EXIT_STATUS_SUCCESS


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports within functions count, for they run; those for types alone do not."""
    graph = grimp.build_graph(*_PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    left = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := {module for module, imports in left.items() if not imports & left.keys()}:
        left = {module: imports for module, imports in left.items() if module not in free}
    # What is left is in a circle, or imports one.
    while unused := {module for module in left if not any(module in imports for imports in left.values())}:
        left = {module: imports for module, imports in left.items() if module not in unused}
    assert not left
