"""What is reported of a campaign: its figures, its failing counts, its floors; as JSON, and as a table."""

import platform
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.chaos.blows import PARTITIONS, Kind
from tests.chaos.campaign import CLOCK_SECONDS, Outcome, Plan
from tests.chaos.checker import ENDED, check, counts, margins
from tests.chaos.stores import Store

# What a minute of blows with four workers must reach on two busy cores, and of that what a store without a network or
# a power switch can: else the campaign is void.
_FLOORS_A_MINUTE: Final = {
    "starts": 60.0,
    "kill worker": 4.0,
    "kill guardian": 1.6,
    "stops longer than the lease": 1.6,
    "pairs": 1.6,
    "partitions": 8.0,
    "one verb": 3.0,
    "kill broker": 1.6,
}
_T5_FLOORS_A_MINUTE: Final = {"starts": 20.0, "partitions": 20.0}
_CLASSES: Final[Mapping[str, tuple[Kind, ...]]] = {
    "kill worker": (Kind.KILL_WORKER,),
    "kill guardian": (Kind.KILL_GUARDIAN,),
    "stops longer than the lease": (Kind.STOP_WORKER, Kind.STOP_GUARDIAN, Kind.STOP_WATCHER, Kind.BLOCK_WORKER),
    "pairs": (Kind.PAIR,),
    "partitions": PARTITIONS,
    "one verb": (Kind.ONE_VERB,),
    "kill broker": (Kind.KILL_BROKER,),
}
_MOST_SHOWN: Final = 20
Record = dict[str, Any]


def of_campaign(store: type[Store], plan: Plan, outcome: Outcome) -> Record:
    """Return all that is reported of a campaign, as JSON holds it."""
    evidence = outcome.evidence
    violations = check(evidence)
    struck = Counter(blow.kind for blow in outcome.blows if blow.has_struck)
    figures = {
        "tasks": len(evidence.acknowledged),
        "pushes unknown": len(evidence.unknown),
        **{end: sum(end in ends for ends in evidence.ends.values()) for end in sorted(ENDED)},
        "leases": len(evidence.leases),
        "starts": sum(len(life.starts) for life in evidence.history.lives.values()),
        "settlements": sum(len(lease.settlements) for lease in evidence.leases.values()),
        **{name: sum(struck[kind] for kind in kinds) for name, kinds in _CLASSES.items()},
    }
    floors = _floors(plan, store)
    void = [f"{name}: {figures[name]} of at least {floor}" for name, floor in floors.items() if figures[name] < floor]
    if abs(outcome.clock_stepped) > CLOCK_SECONDS:
        void.append(f"the wall clock was set by {outcome.clock_stepped:+.3f} s meanwhile")
    return {
        **head("T5" if plan.only else "T4", store.name),
        "seed": plan.seed,
        "seconds": plan.seconds,
        "took_seconds": round(outcome.seconds, 1),
        "lease_seconds": plan.lease_seconds,
        "workers": plan.workers,
        "slots": plan.slots,
        "older": plan.older.name if plan.older else None,
        "figures": figures,
        "floors": floors,
        "blows": _blows([(blow.kind, blow.has_struck) for blow in outcome.blows]),
        "pairs": _blows([(blow.detail, blow.has_struck) for blow in outcome.blows if blow.kind is Kind.PAIR]),
        "verbs": _blows([(blow.detail, blow.has_struck) for blow in outcome.blows if blow.kind is Kind.ONE_VERB]),
        "margins": [{"blow": kind, **_percentiles(each)} for kind, each in _with_all(margins(evidence)).items()],
        "failing": counts(violations),
        "violations": [f"{each.rule}: {each.what}" for each in violations],
        "void": void,
    }


def head(test: str, store: str) -> Record:
    """Return what stands at the head of every record."""
    return {
        "test": test,
        "store": store,
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}",
    }


def table(record: Record) -> Iterator[str]:
    """Show a record to people."""
    yield from _trees(record) if record["test"] == "T6" else _campaign(record)
    yield from (f"  VIOLATED {text}" for text in record["violations"][:_MOST_SHOWN])
    if more := record["violations"][_MOST_SHOWN:]:
        yield f"  and {len(more)} more"
    yield from (f"  VOID {text}" for text in record["void"])


def _trees(record: Record) -> Iterator[str]:
    killed, ways = sum(record["killed"].values()), ", ".join(record["killed"])
    yield f"T6: {killed} hostile trees killed ({ways}); {record['failing']['survivors']} survived"


def _campaign(record: Record) -> Iterator[str]:
    figures = record["figures"]
    ends = ", ".join(f"{figures[end]} {end}" for end in sorted(ENDED))
    yield (
        f"{record['test']} {record['store']}, seed {record['seed']}: {figures['tasks']} tasks ({ends}),"
        f" {figures['starts']} starts under {figures['leases']} leases, in {record['took_seconds']:.0f} s"
    )
    if record["older"]:
        yield f"  one of the workers was of {record['older']}"
    struck = ", ".join(f"{each['blow']} {each['struck']}" for each in record["blows"])
    yield f"  struck: {struck or 'nothing'}; {sum(each['missed'] for each in record['blows'])} struck nothing"
    for each in record["margins"]:
        figures = f"smallest {each['p0']:.3f}, 1st percentile {each['p1']:.3f}, median {each['p50']:.3f}"
        yield f"  {each['blow']:<16} {each['trees']:>4} trees dead before their expiry by, s: {figures}"


def _floors(plan: Plan, store: type[Store]) -> dict[str, int]:
    wanted = {"starts", "partitions"} if plan.only else set(_FLOORS_A_MINUTE)
    if not store.has_network:
        wanted -= {"partitions"}
    if not store.verbs:
        wanted -= {"one verb"}
    if not store.can_be_killed:
        wanted -= {"kill broker"}
    share = plan.seconds / 60 * plan.workers / 4
    floors = _FLOORS_A_MINUTE | (_T5_FLOORS_A_MINUTE if plan.only else {})
    return {name: max(1, int(floor * share)) for name, floor in floors.items() if name in wanted}


def _blows(dealt: Sequence[tuple[str, bool]]) -> list[dict[str, Any]]:
    """Count by name, a row each: what struck, and what hit nothing."""
    found = Counter(dealt)
    names = sorted({name for name, _ in dealt})
    return [{"blow": name, "struck": found[name, True], "missed": found[name, False]} for name in names]


def _with_all(found: Mapping[str, list[float]]) -> dict[str, list[float]]:
    every = sorted(margin for each in found.values() for margin in each)
    return {**found, **({"all": every} if every else {})}


def _percentiles(margins: Sequence[float]) -> dict[str, float]:
    first = margins[0] if len(margins) == 1 else statistics.quantiles(margins, n=100, method="inclusive")[0]
    figures = {"p0": margins[0], "p1": first, "p50": statistics.median(margins)}
    return {"trees": len(margins), **{name: round(each, 3) for name, each in figures.items()}}


def _commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
