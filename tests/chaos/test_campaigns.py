"""T4 to T6: campaigns on each store and of hostile trees break no rule; one whose workers break a rule finds that."""

import secrets
from pathlib import Path

import pytest

from tests.chaos.blows import Kind
from tests.chaos.campaign import LONG, Campaign, Outcome, Plan
from tests.chaos.checker import Rule, check, margins
from tests.chaos.crew import SHORT, SHORT_SECONDS
from tests.chaos.record import of_campaign
from tests.chaos.stores import STORES, why_not
from tests.chaos.trees import WAYS, survivors_of
from tests.support.tcp_proxy import TcpStrike

pytestmark = pytest.mark.check

SEED = secrets.randbelow(10**6)


async def outcome_of(folder: Path, store_name: str, plan: Plan) -> Outcome:
    if reason := why_not(store_name):
        pytest.skip(reason)
    store = STORES[store_name](folder)
    try:
        await store.start()
        return await Campaign(folder, store, plan, lambda _: None).run()
    finally:
        await store.stop()


@pytest.mark.night("statistics of many blows: a minute for each store")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", STORES)
async def test_no_rule_is_broken(tmp_path: Path, store: str) -> None:
    """S1 to S5, P1, L1: workers are struck, and the store is killed where it promises to live through that."""
    plan = Plan(30.0, SEED)
    record = of_campaign(STORES[store], plan, await outcome_of(tmp_path, store, plan))
    assert (record["violations"], record["void"]) == ([], []), f"python -m tests.chaos --store {store} --seed {SEED}"
    struck = {each["blow"].partition(":")[0] for each in record["verbs"] if each["struck"]}
    assert struck == set(STORES[store].verbs), "each verb of the store was struck, below a worker with living trees"


@pytest.mark.slow("a real worker's lease runs out, and another one's begins")
@pytest.mark.parametrize(
    ("rule", "store", "blow"), [("hold", "service", Kind.REFUSE), ("deadline", "sqlite", Kind.STOP_WORKER)]
)
async def test_a_broken_rule_is_found(tmp_path: Path, rule: str, store: str, blow: Kind) -> None:
    """A tree that is held beyond its lease meets its successor."""
    plan = Plan(
        seconds=30.0,
        seed=638,  # whose first blow lasts for nearly two leases
        enough=1,
        workers=2,
        tasks=1,
        mix=LONG,
        only=(blow,),
        lease_seconds=SHORT_SECONDS,
        environment={**SHORT, "CHAOS_BROKEN": rule},
    )
    evidence = (await outcome_of(tmp_path, store, plan)).evidence
    assert {each.rule for each in check(evidence)} >= {Rule.OVERLAP, Rule.OUTLIVED}
    assert all(each[0] < 0 for each in margins(evidence).values())


@pytest.mark.night("needs many answers that come late")
@pytest.mark.timeout(120)
async def test_a_start_under_a_lease_heard_of_too_late_is_found(tmp_path: Path) -> None:
    plan = Plan(
        seconds=20.0,
        seed=SEED,
        only=(Kind.ONE_VERB,),
        strikes=(TcpStrike.LATE_ANSWER,),
        lease_seconds=SHORT_SECONDS,
        environment={**SHORT, "CHAOS_BROKEN": "heard"},
    )
    evidence = (await outcome_of(tmp_path, "service", plan)).evidence
    assert Rule.OUTLIVED in {each.rule for each in check(evidence)}


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(
            way, marks=() if way in ("kill worker", "kill guardian") else pytest.mark.night("deadlines of seconds")
        )
        for way in WAYS
    ],
)
async def test_no_hostile_tree_survives(tmp_path: Path, way: str) -> None:
    assert await survivors_of(tmp_path, way) == {}
