"""What the code quotes of the design stands in docs/design, and nothing refers to a text that is not here."""

import ast
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_DESIGN: Final = ROOT / "docs/design"
_QUOTED: Final = re.compile(r"\b(?:S(?:1[01]|[1-9])|P[1-8]|L[1-6]|A(?:1[0-3]|[1-9])|T(?:1[01]|[1-9]))\b")


def _sources() -> dict[str, str]:
    """Return the text of each file of code by its path."""
    command = ["git", "ls-files", "--", "jobq", "backends", "tests", "benchmarks", "pyproject.toml"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    kept = [name for name in names if name.endswith((".py", ".sql", ".toml")) and (ROOT / name).is_file()]
    return {name: (ROOT / name).read_text() for name in kept}


def test_each_rule_that_is_quoted_is_written_down() -> None:
    rules = set(re.findall(r"^\| ([SPLAT0-9, ]+) \|", (_DESIGN / "rules.md").read_text(), re.MULTILINE))
    known = {each for row in rules for each in row.split(", ")}
    product = {name: text for name, text in _sources().items() if name.startswith(("jobq/", "backends/"))}
    quoted = {each for text in product.values() for part in _in_brackets(text) for each in _QUOTED.findall(part)}
    assert len(quoted) > 20
    assert quoted <= known


def _in_brackets(text: str) -> list[str]:
    """Return what stands in round brackets in comments and docstrings, as ids are quoted."""
    return re.findall(r"\(((?:[SPLAT]\d{1,2}(?:, | and )?)+)\)", text)


def test_each_rule_names_tests_that_show_it_or_says_that_none_does() -> None:
    rows = re.findall(r"^\| ([SPLA]?\d+) \|(.*)\|$", (_DESIGN / "rules.md").read_text(), re.MULTILINE)
    assert len(rows) > 45
    for rule, row in rows:
        shown = row.rpartition(" | ")[2]
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", shown)
        assert named or "not shown" in shown, rule
        for file, name in named:
            path = ROOT / ("" if file.startswith("jobq/") else "tests") / file
            assert re.search(rf"^(?:async )?def {name}\(", path.read_text(), re.MULTILINE), f"{rule}: {file}::{name}"


def test_each_section_that_is_quoted_is_there() -> None:
    headings = set(re.findall(r"^## (\d+)\. ", (_DESIGN / "architecture.md").read_text(), re.MULTILINE))
    sections = set(re.findall(r"^## (\d(?:\.\d)?)\.? ", (_DESIGN / "rules.md").read_text(), re.MULTILINE))
    timing = set(re.findall(r"^(\d+)\. ", (_DESIGN / "rules.md").read_text(), re.MULTILINE))
    for name, text in _sources().items():
        for section in re.findall(r"\barchitecture (\d+)", text):
            assert section in headings, name
        for section in re.findall(r"\brules\.md (\d(?:\.\d)?)", text):
            assert section in sections, name
        for rule in re.findall(r"\brules\.md 1\.3,? rule (\d+)", text):
            assert rule in timing, name


@pytest.mark.slow("runs each command that is shown, each a process")
def test_the_variables_that_are_read_beside_the_table_of_settings_are_those_that_it_names() -> None:
    section = (_DESIGN / "architecture.md").read_text().partition("## 11. ")[2].partition("\n## ")[0]
    named: dict[str, set[str]] = {}
    for variables, files in re.findall(r"^\| (`JOBQ_[^|]+) \| ([^|]+) \|", section, re.MULTILINE):
        for variable in re.findall(r"`(\w+)`", variables):
            named[variable] = set(re.findall(r"`([^`]+)`", files))
    found: dict[str, set[str]] = {}
    for name, text in _sources().items():
        if not name.startswith(("jobq/", "backends/")) or not name.endswith(".py"):
            continue
        if name.startswith("jobq/testing/") or name == "jobq/settings.py":
            continue
        if name in {"jobq/spec.py", "jobq/run/attempt/allowed.py"}:  # in messages
            continue
        for node in ast.walk(ast.parse(text)):
            # As a whole: in messages and descriptions they stand among other words.
            if isinstance(node, ast.Constant) and re.fullmatch(r"JOBQ_[A-Z_]+", str(node.value)):
                found.setdefault(str(node.value), set()).add(name)
    assert len(found) > 10
    for variable, files in found.items():
        assert files <= named.get(variable, set()), variable
    assert set().union(*named.values()) == set().union(*found.values())


def test_each_file_that_the_design_names_is_there() -> None:
    files = [each.name for each in ROOT.glob("*/**/*.py") if ".venv" not in each.parts]
    for page in _DESIGN.glob("*.md"):
        for name in re.findall(r"`(?:[a-z0-9_]+/)*([a-z0-9_]+\.py)`", page.read_text()):
            assert name in files, f"{page.name} names {name}"


def test_each_file_and_class_that_the_glossary_names_is_there() -> None:
    rows = re.findall(r"^\| (?!term|---)(.+) \| .+ \| (.+) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(rows) > 40
    for term, where in rows:
        for place in where.split("; "):
            file, *classes = re.findall(r"`([^`]+)`", place)
            text = (ROOT / file).read_text()
            for name in classes:
                assert re.search(rf"^class {name}\b", text, re.MULTILINE), f"{term}: {file} has no {name}"


def test_nothing_refers_to_a_text_that_is_not_here() -> None:
    words = "|".join(("RELIABI" + "LITY", "DESI" + "GN section", "REVI" + "EW.md", "STY" + "LE.md"))
    assert [name for name, text in _sources().items() if re.search(rf"\b(?:{words}|issue \d+\b)", text)] == []


def test_the_drawing_is_the_contract() -> None:
    drawing = (_DESIGN / "architecture.md").read_text().partition("## 2. Rooms")[2].split("```")[1]
    drawn = [set(re.split(r"\s{3,}", line)[0].split()) for line in drawing.strip().splitlines()]
    layers = (ROOT / ".importlinter").read_text().partition("layers =\n    __main__\n")[2].partition("\n;")[0]
    assert drawn == [set(line.replace(":", " ").split()) for line in layers.splitlines()]
