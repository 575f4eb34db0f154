"""`python snooper.py CANARY FOLDER [LOOKS]`: what a task may do: it reads each environment in /proc, without a pause.

It makes FOLDER/looking when it has looked once, and ends after LOOKS, or when there is FOLDER/stop. FOLDER/seen then
holds the command lines of those in whose environment it has found the canary, a JSON list.
"""

import json
import os
import sys
from pathlib import Path


def main(canary: str, folder: Path, looks: int) -> None:
    found: dict[int, str] = {}
    while looks and not (folder / "stop").exists():
        for name in os.listdir("/proc"):  # noqa: PTH208 - plain names are all that is needed, and quicker
            if name.isdigit() and canary in environment(name):
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_text().replace("\0", " ")
        (folder / "looking").touch()
        looks -= 1
    (folder / "seen.part").write_text(json.dumps(list(found.values())))
    (folder / "seen.part").rename(folder / "seen")


def environment(number: str) -> str:
    try:
        with open(f"/proc/{number}/environ", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - quicker
            return file.read()
    except OSError:  # it has ended, or hides
        return ""


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else -1)
