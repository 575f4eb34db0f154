"""Fit a line to noisy points by gradient descent; the result is the loss."""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np

options = argparse.ArgumentParser()
options.add_argument("--lr", type=float, required=True)
options.add_argument("--seed", type=int, required=True)
given = options.parse_args()

random = np.random.default_rng(given.seed)
x = random.uniform(-1, 1, 200)
y = 3 * x + 1 + random.normal(0, 0.1, 200)
slope = offset = 0.0
for _ in range(200):
    error = slope * x + offset - y
    slope -= given.lr * 2 * float(np.mean(error * x))
    offset -= given.lr * 2 * float(np.mean(error))
loss = float(np.mean((slope * x + offset - y) ** 2))
if not loss < 1:
    sys.exit(f"diverged with lr={given.lr}: loss {loss}")
print(f"slope {slope:.3f}, offset {offset:.3f}, loss {loss:.4f}")
Path(os.environ["JOBQ_RESULT_FILE"]).write_text(json.dumps({"slope": round(slope, 3), "loss": round(loss, 4)}))
