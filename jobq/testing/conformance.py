"""The conformance suite, entered by one call: does a backend keep the protocol and the rules S1 to S9?

Without pytest:

    report = await conformance.run(harness)
    assert not report.failed, str(report)

With pytest:

    @pytest.mark.parametrize("case", conformance.cases(), ids=str)
    async def test_conforms(case): await conformance.run_case(case, harness)

A case is skipped for a capability that the backend does not declare, never for its name.
"""

import asyncio
import importlib
import traceback
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from jobq.backend import Capabilities
from jobq.testing.cases import Case, registered
from jobq.testing.harness import Bench, Harness

__all__ = ["Case", "Harness", "Report", "Skipped", "cases", "missing", "run", "run_case"]

_MODULES: Final = (
    "push",
    "receive",
    "lease",
    "stale",
    "settle",
    "signed",
    "dead",
    "pause",
    "hasten",
    "select",
    "batch",
    "journal",
    "cancel",
    "views",
    "observations",
    "poison",
    "faults",
)


@dataclass(frozen=True)
class Skipped:
    """A case that does not apply, and the capability that is missing."""

    case: str
    missing: str


@dataclass
class Report:
    """What became of the cases: names that passed, tracebacks of those that failed, reasons of the others."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"]
        lines += [f"skipped {name}: not {capability}" for name, capability in self.skipped.items()]
        lines += [f"FAILED {name}\n{trace}" for name, trace in self.failed.items()]
        return "\n".join(lines)


def cases(capabilities: Capabilities | None = None) -> list[Case]:
    """Return all cases, or those that apply to a backend with these capabilities and a harness that can inject."""
    for module in _MODULES:
        importlib.import_module(f"jobq.testing.cases.{module}")
    return [case for case in registered() if capabilities is None or not missing(case, capabilities)]


def missing(case: Case, capabilities: Capabilities) -> str:
    """Return the first capability that the case needs and the backend has not; empty when it has all."""
    return next((need for need in case.needs if not _has(capabilities, need)), "")


async def run_case(case: Case, harness: Harness) -> Skipped | None:
    """Run one case on a fresh queue; raises what the case raises, AssertionError for a broken rule."""
    lacking = missing(case, harness.capabilities)
    if not lacking and case.injects and harness.inject is None:
        lacking = "inject"
    if lacking:
        return Skipped(case.name, lacking)
    async with asyncio.timeout(harness.case_timeout.total_seconds()), AsyncExitStack() as stack:
        bench = Bench(harness, stack)
        await bench.open()
        if lacking := missing(case, bench.capabilities):  # which the queue says once it was asked
            return Skipped(case.name, lacking)
        await case.check(bench)
    return None


async def run(harness: Harness, only: Iterable[str] = ()) -> Report:
    """Run all cases, or those named, one after the other; a failure ends its case alone."""
    report, wanted = Report(), frozenset(only)
    for case in cases():
        if wanted and case.name not in wanted:
            continue
        try:
            skipped = await run_case(case, harness)
        except Exception:  # noqa: BLE001 - whatever a foreign backend raises is the finding
            report.failed[case.name] = traceback.format_exc()
            continue
        if skipped is None:
            report.passed.append(case.name)
        else:
            report.skipped[case.name] = skipped.missing
    return report


def _has(capabilities: Capabilities, need: str) -> bool:
    """Read a need: the name of a capability that must be set, or name=value for one of several."""
    name, _, value = need.partition("=")
    found = getattr(capabilities, name)
    if isinstance(found, frozenset):
        return value in found
    return str(found) == value if value else bool(found)
