"""What is crashed, and how what is left is judged."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.crash import workload
from tests.crash.workload import Opens, Store

FILE: Final = "jobs.db"


@dataclass(frozen=True)
class Subject:
    """Something that a child does to a file.

    Attributes:
        name: in a few words.
        prepare: makes what is there before, in an empty folder.
        work: returns what the child runs on the file; it tells a line for each step that was acknowledged.
        fault: returns what is wrong with what was left, after so many steps were told, perhaps by another boot.
    """

    name: str
    prepare: Callable[[Path], None]
    work: Callable[[Path], Callable[[int], None]]
    fault: Callable[[Path, int, bool], str]


def verbs(folder: Path, opens: Opens = Store, opens_after: Opens = Store) -> Subject:
    """Return the workload; `folder` is used to find out what is right, and bugs may be planted before and after."""
    expected = workload.contents(emptied(folder))

    def fault(path: Path, told: int, is_rebooted: bool) -> str:
        return workload.fault_of(path, told, expected, opens_after, is_rebooted=is_rebooted)

    return Subject("every verb", lambda _: None, lambda path: workload.work(path, opens), fault)


def emptied(folder: Path) -> Path:
    """Return a folder with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
