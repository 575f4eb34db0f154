"""Run seeds until one breaks a rule, and print it: `python -m tests.mutants.search STORE SEED [SEED ...]`."""

import os
import sys

from tests.simulation.campaign import run_one
from tests.simulation.stores import STORES

FOUND = "broken by seed"

if __name__ == "__main__":
    store, *seeds = sys.argv[1:]
    found = next((seed for seed in seeds if run_one(int(seed), STORES[store]).monitor.violations), None)
    print(FOUND, found or "none")
    sys.stdout.flush()
    os._exit(0)  # see `run_one`
