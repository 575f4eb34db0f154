"""Reads uv.lock: what a set of extras comes to.

`python tests/supply_chain/lock.py uv` prints one package as a requirement with its hashes: `make install` begins with
it where the machine has no uv, so nothing but the standard library is imported here.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
Package = dict[str, Any]


def packages() -> dict[str, list[Package]]:
    """Return the packages by name; some have two versions, for older and newer Pythons."""
    found: dict[str, list[Package]] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        found.setdefault(package["name"], []).append(package)
    return found


def files(package: Package) -> list[dict[str, Any]]:
    """Return what can be downloaded of a package: its wheels, and its sources."""
    return [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]


def below(names: list[str], known: dict[str, list[Package]]) -> set[str]:
    """Return these packages and all that they need, on any platform."""
    found: set[str] = set()
    waiting: list[tuple[str, tuple[str, ...]]] = [(name, ()) for name in names]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        for package in known[name]:
            optional = package.get("optional-dependencies", {})
            needed = [*package.get("dependencies", ()), *(each for extra in extras for each in optional.get(extra, ()))]
            waiting += [(each["name"], tuple(each.get("extra", ()))) for each in needed]
    return found


def requirement(name: str) -> str:
    """Return a package as pip takes it, with the hash of each file."""
    (package,) = packages()[name]
    return " ".join([f"{name}=={package['version']}", *(f"--hash={file['hash']}" for file in files(package))])


if __name__ == "__main__":
    sys.stdout.write(f"{requirement(sys.argv[1])}\n")
