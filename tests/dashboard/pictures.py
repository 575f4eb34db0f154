"""Takes the pictures of docs/dashboard.md, of a real service: `python -m tests.dashboard.pictures`."""

import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import ViewportSize, sync_playwright

from jobq.backend import Backend
from jobq.journal.minutes import MINUTE, EndedAttempts, QueueDepth, start_of
from jobq.journal.notes import NoteKind, time_key
from jobq.journal.observations import observations_of
from tests.dashboard import browser
from tests.dashboard.support import Dashboard
from tests.service.server import running

_FOLDER: Final = Path(__file__).parents[2] / "docs" / "pictures"
# What the tasks of the pictures run, by the name that stands there.
_PROGRAMS: Final = {
    "train.py": """
import subprocess, sys, time
seed = int(sys.argv[2])
if seed > 9:
    print("epoch 1 loss 2.31\\nepoch 2 loss 1.87")
    sys.exit("RuntimeError: CUDA error: out of memory" if seed % 2 else "OSError: [Errno 5] Input/output error")
subprocess.run([sys.executable, "-m", "jobq", "progress", f"0.{seed}", f"epoch {seed}"])
time.sleep(600)
""",
    "evaluate.py": "",
}


def main() -> None:
    """Take them all."""
    _FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program, text in _PROGRAMS.items():
            (folder / program).write_text(text)
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        with running("train", folder, "--ui", is_open=False) as server:
            dashboard = Dashboard(server, "train", folder, path)
            _fill(dashboard)


def _fill(dashboard: Dashboard) -> None:
    sweep = (
        "--grid",
        "lr=1e-3,1e-4",
        "--grid",
        "seed=1..6",
        "-c",
        "python evaluate.py --lr $PARAM_lr --seed $PARAM_seed",
    )
    dashboard.jobq("push", "--batch", "sweep-7", "--num-retries", "0", *sweep)
    dead = [
        dashboard.push(f"python train.py --seed {seed}", "--num-retries", "0") for seed in (11, 12, 13, 14, 15, 17, 19)
    ]
    shown = [dashboard.push(f"python train.py --seed {seed}") for seed in (3, 5, 8)]
    for seed in range(20, 60):
        dashboard.push(f"python train.py --seed {seed}", "--delay", f"{seed}m")
    with dashboard.worker("-n", "3", "--visibility-timeout", "4s"):
        for task_id in dead:
            dashboard.wait_for(task_id, "dead")
        for task_id in shown:
            dashboard.wait_for(task_id, "running")
        dashboard.inside(_noted)
        _take(dashboard, (("queue", "", "light"), ("running", "running", "dark"), ("task", f"t/{dead[0]}", "light")))


async def _noted(backend: Backend) -> None:
    """Note the hour before, which no picture waits for."""
    notes = observations_of(backend)
    assert notes is not None
    now = start_of(time.time())
    for back in range(3, 60):
        wave = round(10 * math.sin(back / 9))
        outcomes = {"succeeded": 40 + wave, "failed": back % 5, "lock_lost": 2 * (back in (17, 18))}
        ended = EndedAttempts.of(outcomes, [20.0 + wave] * 20, [30.0 + 2 * wave] * 20)
        depth = QueueDepth(counts={"ready": 60 + 4 * wave, "running": 3}, oldest_seconds=60.0 + 3 * wave)
        await notes.put(NoteKind.ENDED, time_key(now - back * MINUTE), ended.encode(), replaces=True)
        await notes.put(NoteKind.DEPTH, time_key(now - back * MINUTE), depth.encode(), replaces=True)


def _take(dashboard: Dashboard, pages: Sequence[tuple[str, str, Literal["light", "dark"]]]) -> None:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.find(), args=["--no-sandbox"])
        for picture, path, scheme in pages:
            size: ViewportSize = {"width": 1200, "height": 720}
            context = chromium.new_context(locale="en-US", viewport=size, color_scheme=scheme)
            name, _, value = dashboard.cookie("view", "operate").partition("=")
            context.add_cookies([{"name": name, "value": value, "url": dashboard.url}])
            page = context.new_page()
            page.goto(f"{dashboard.url}/ui/q/train/{path}".rstrip("/"))
            if picture == "running":
                page.get_by_text("80 %").wait_for(timeout=60_000)
            page.screenshot(path=_FOLDER / f"{picture}-{scheme}.png", full_page=True)
        chromium.close()


if __name__ == "__main__":
    main()
