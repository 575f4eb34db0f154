"""What may befall a run: the kinds of faults, and how likely a run has each at all; `blows.py` has those that strike.

Most runs have few kinds (swarm testing): a fault that ends everything would hide what a small one does.
"""

from random import Random
from typing import Final

SHARES: Final[dict[str, float]] = {
    "partition out": 0.4,
    "partition in": 0.4,
    "partition both": 0.4,
    "refuse": 0.3,
    "reset": 0.4,
    "slow": 0.4,
    "lose request": 0.3,
    "lose answer": 0.4,
    "double": 0.3,
    "broker crash": 0.3,
    "broker away": 0.2,
    "worker kill": 0.4,
    "worker stop": 0.4,
    "worker term": 0.4,
    "guardian kill": 0.2,
    "guardian late": 0.2,
    "guardian stop": 0.2,
    "machine death": 0.2,
    "machine freeze": 0.15,
    "machine suspend": 0.15,
    "wall step": 0.15,
    "notice": 0.3,
    "rotating receipts": 0.15,
    "named leases": 0.15,
    "holder kill": 0.5,
    "holder stop": 0.5,
    "cancel": 0.3,
    "redrive": 0.3,
    "failing": 0.5,
    "crashing": 0.3,
    "failed start": 0.2,
    "hostile": 0.5,
    "time limit": 0.2,
    "checkpoints": 0.4,
    "short runs": 0.3,
    "long runs": 0.5,
    "ends when empty": 0.3,
    "push in pieces": 0.4,
}

# What a Service Bus has not: receipts that rotate, a place for checkpoints and names, a journal that cancels.
NOT_OF_THE_BUS: Final = frozenset(
    {"rotating receipts", "named leases", "holder kill", "holder stop", "cancel", "checkpoints"}
)
# What befalls a store and its workers apart, and cannot where one machine has them all.
NOT_ON_THE_MACHINE: Final = frozenset({"machine death", "broker crash", "broker away"})


def choose(chance: Random) -> frozenset[str]:
    """Return the kinds that one run has."""
    return frozenset(kind for kind, share in SHARES.items() if chance.random() < share)
