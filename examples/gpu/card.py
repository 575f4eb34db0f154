"""A task that believes it has a card for itself, and fails where it has not: the card is a file that it locks."""

import fcntl
import os
import sys
import time
from pathlib import Path

cards = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
assert len(cards) == 1, f"asked for one card, was given {cards}"
with Path(sys.argv[1], f"card-{cards[0]}").open("a") as card:
    try:
        fcntl.flock(card, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"card {cards[0]} is somebody else's")
    time.sleep(0.3)  # stands for the work
    print(f"had card {cards[0]} to itself, and {os.environ['JOBQ_CPUS']} cpus", flush=True)
