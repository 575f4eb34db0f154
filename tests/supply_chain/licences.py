"""Makes the page of licences (docs/made.py) by what the installed packages say of themselves."""

import importlib.metadata
import re
import tomllib
from typing import Final

from .lock import ROOT, below, packages

IMAGE: Final = ("postgres", "server", "otel", "azuremonitor")
_CLASSIFIER: Final = "License :: "
_LONGEST: Final = 60  # of a licence's name; some have the whole text in its place
_HEAD: Final = """\
# Licences

jobq is under the MIT licence (`LICENSE`). What it needs where it runs, with all that the image of
`deploy/Dockerfile` brings, in the versions of `uv.lock`; the licence is what each package says of itself.

| package | version | licence | brought by |
|---|---|---|---|
"""


def extras() -> dict[str, list[str]]:
    """Return the names of what jobq needs itself ("jobq") and with each extra of its image."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {"jobq": project["dependencies"]}
    found |= {f"jobq[{extra}]": project["optional-dependencies"][extra] for extra in IMAGE}
    return {by: [name for text in needed if (name := _name(text)) != "jobq"] for by, needed in found.items()}


def needed() -> dict[str, str]:
    """Return what is needed where jobq runs, and by which part of it first."""
    known, found = packages(), dict[str, str]()
    for by, names in extras().items():
        for name in sorted(below(names, known)):
            found.setdefault(name, by)
    return dict(sorted(found.items()))


def licence(name: str) -> str:
    """Return the licence of an installed package."""
    said = importlib.metadata.metadata(name).json
    classifiers = [text for text in said.get("classifier", ()) if text.startswith(_CLASSIFIER)]
    expression, text = said.get("license_expression"), str(said.get("license", "")).strip()
    if text and (len(text) > _LONGEST or "\n" in text):
        text = ""
    found = expression or text or ", ".join(text.rpartition(" :: ")[2] for text in classifiers)
    if not found:
        raise ValueError(f"{name} says nothing of its licence")
    return str(found)


def page() -> str:
    """Return the page."""
    known, lines = packages(), []
    for name, by in needed().items():
        versions = ", ".join(package["version"] for package in known[name])
        lines.append(f"| {name} | {versions} | {licence(name)} | {by} |")
    return _HEAD + "\n".join(lines) + "\n"


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[._-]+", "-", found[0]).lower()
