"""A training of 20 epochs that goes on where the last attempt was saved."""

import json
import os
import time
from pathlib import Path

import jobq

EPOCHS = 20
saved = Path(os.environ["JOBQ_CHECKPOINT_DIR"], "model.json")
state = json.loads(saved.read_text()) if saved.exists() else {"epoch": 0, "loss": 1.0}
print(f"attempt {os.environ['JOBQ_ATTEMPT']} begins after epoch {state['epoch']}", flush=True)

while state["epoch"] < EPOCHS:
    time.sleep(0.05)  # stands for an epoch
    state = {"epoch": state["epoch"] + 1, "loss": state["loss"] * 0.9}
    new = saved.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.rename(saved)  # whole at any time
    if state["epoch"] % 5 == 0:
        jobq.checkpoint_directory()  # saved for good when it returns
    jobq.progress(state["epoch"] / EPOCHS, f"epoch {state['epoch']}")

Path(os.environ["JOBQ_RESULT_FILE"]).write_text(json.dumps({"loss": round(state["loss"], 4)}))
