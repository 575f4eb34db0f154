"""The pack holds over rebuilds of the insides, for it knows nothing of them."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.check


def test_the_pack_imports_nothing_of_jobq_and_nothing_of_the_other_tests() -> None:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, file.name
                named = [node.module or ""]
            for name in named:
                assert not name.startswith("jobq"), f"{file.name}: {name}"
                assert not name.startswith("tests") or name == "tests.blackbox.support", f"{file.name}: {name}"
