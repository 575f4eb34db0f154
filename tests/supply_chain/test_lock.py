"""uv.lock names the public index only, has a hash for each file, and is what pyproject.toml asks for."""

import re
import tomllib
from typing import Any

import pytest

from .licences import needed, page
from .lock import ROOT, files, packages

pytestmark = pytest.mark.check

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^\]]*)\])?\s*(?P<specifier>[^;]*)(?:;\s*(?P<marker>.*))?"
)
PUBLIC = {"pypi.org", "files.pythonhosted.org"}


def test_it_names_the_public_index_only() -> None:
    """A mirror's address, of whoever made the lock, would be asked by all who use it."""
    text = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r"\w+://([^/\"]+)", text)) == PUBLIC
    sources = {name: package["source"] for name, both in packages().items() for package in both}
    assert sources.pop("jobq") == {"editable": "."}
    assert {str(source) for source in sources.values()} == {"{'registry': 'https://pypi.org/simple'}"}


def test_each_file_has_a_hash() -> None:
    found = {(name, package["version"]): files(package) for name, both in packages().items() for package in both}
    assert [key for key, all_files in found.items() if not all_files and key[0] != "jobq"] == []
    hashes = [file["hash"] for all_files in found.values() for file in all_files]
    assert [each for each in hashes if not re.fullmatch(r"sha256:[0-9a-f]{64}", each)] == []


def asked(requirement: str, extra: str | None = None) -> tuple[Any, ...]:
    """Return a requirement of pyproject.toml as what it says."""
    found = _REQUIREMENT.fullmatch(requirement)
    assert found is not None, requirement
    name = re.sub(r"[._-]+", "-", found["name"]).lower()
    extras = frozenset(filter(None, re.split(r"\s*,\s*", found["extras"] or "")))
    markers = [*([found["marker"].strip()] if found["marker"] else []), *([f"extra == '{extra}'"] if extra else [])]
    return name, extras, found["specifier"].strip(), " and ".join(markers)


def locked(requirement: dict[str, Any]) -> tuple[Any, ...]:
    """Return what the lock was made for, likewise."""
    return (
        requirement["name"],
        frozenset(requirement.get("extras", ())),
        requirement.get("specifier", ""),
        requirement.get("marker", ""),
    )


def test_it_is_what_the_project_asks_for() -> None:
    """`uv lock --check` says the same, with an index at hand."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = {asked(each) for each in project["project"]["dependencies"]}
    wanted |= {asked(each, extra) for extra, all_of_it in extras.items() for each in all_of_it}
    (jobq,) = packages()["jobq"]
    assert {locked(each) for each in jobq["metadata"]["requires-dist"]} == wanted, "run: make lock"
    groups = {name: {asked(each) for each in group} for name, group in project["dependency-groups"].items()}
    made_for = {name: {locked(each) for each in group} for name, group in jobq["metadata"]["requires-dev"].items()}
    assert made_for == groups, "run: make lock"
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    assert lock["requires-python"] == project["project"]["requires-python"]


def test_the_licences_name_all_that_jobq_needs_where_it_runs() -> None:
    rows = [line.strip("| ").split(" | ") for line in page().splitlines() if re.match(r"\| [a-z0-9]", line)]
    assert [row[0] for row in rows[1:]] == list(needed())
    assert all(licence.strip() for _, _, licence, _ in rows)
    assert {"aiohttp", "pydantic", "asyncpg", "uvicorn"} <= {row[0] for row in rows}
