"""Each word has one meaning: no public class has the name of another."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SPEAK_ANOTHER_LANGUAGE = ("jobq/sync/",)  # whose words are those of `jobq` without `async`
# The same meaning in each backend: a request was sent, and no one can say what became of it.
_COMMON = {"NoAnswer"}


def _classes() -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for folder in ("jobq", "backends"):
        for file in sorted((_ROOT / folder).rglob("*.py")):
            path = str(file.relative_to(_ROOT))
            if path.startswith(_SPEAK_ANOTHER_LANGUAGE):
                continue
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(path)
    return found


def test_no_two_public_classes_have_one_name() -> None:
    classes = _classes()
    assert len(classes) > 300
    assert {name: paths for name, paths in classes.items() if len(paths) > 1 and name not in _COMMON} == {}


@pytest.mark.parametrize("name", sorted(_COMMON))
def test_what_may_have_one_name_has_it(name: str) -> None:
    assert len(_classes()[name]) > 1
