"""What several runs of pytest came to together, from the reports that they have written."""

import heapq
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

_SLOWEST: Final = 10


def processes_started() -> int:
    """Return how many processes and threads this machine has started since its boot; 0 where it does not say."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("processes "))


def has_run(reports: Sequence[Path]) -> bool:
    """Return whether any test ran."""
    return any(True for report in reports for _ in ET.parse(report).iter("testcase"))


def _has_failed(case: ET.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def lines(reports: Sequence[Path], began: float, processes: int) -> Iterator[str]:
    """Yield what to print at the end.

    Args:
        reports: JUnit's XML.
        began: when it all began, by time.monotonic().
        processes: what `processes_started` was then.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    failed: set[str] = set()
    skipped: dict[str, str] = {}
    for report in reports:
        for case in ET.parse(report).iter("testcase"):  # written by ourselves
            name = f"{case.get('file')}::{case.get('name')}"
            seconds[name] += float(case.get("time", 0))
            if _has_failed(case):
                failed.add(name)
            elif (skip := case.find("skipped")) is not None:
                skipped[name] = skip.get("message", "")
    yield f"\nthe {_SLOWEST} slowest tests:"
    yield from (f"{took:7.2f} s  {name}" for name, took in heapq.nlargest(_SLOWEST, seconds.items(), key=itemgetter(1)))
    if skipped:
        yield "\nskipped:"
        yield from (f"{count:7}    {reason}" for reason, count in Counter(skipped.values()).most_common())
    if failed:
        yield "\nfailed:"
        yield from (f"        {name}" for name in sorted(failed))
    started, took, used = processes_started() - processes, time.monotonic() - began, os.times()
    cpu = used.user + used.system + used.children_user + used.children_system
    yield f"\n{took:.0f} s, {cpu:.0f} s of CPU; {started} processes and threads started on this machine"
    yield f"{len(seconds) - len(failed) - len(skipped)} passed, {len(failed)} failed, {len(skipped)} skipped"
