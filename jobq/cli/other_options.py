"""Options of ai4s-jobq that jobq has under another name, or does not need (docs/from-ai4s-jobq.md)."""

from typing import Final

INSTEAD: Final = {
    "--bg-dirsync-to": "jobq has none: save files with --checkpoint-store of a worker, and `jobq checkpoint --dir`",
    "--csv": "a sweep is a line for each task, as in: awk -F, 'NR>1 {print \"python train.py --lr \" $1}' FILE.csv |"
    " jobq QUEUE push -",
    "--conn-str": "set JOBQ_CONNECTION_STRING: what stands in an option shows in `ps`",
    "--dedup-window": "the queue remembers ids: `push --dedup-by-content`, or `--id`; for how long is said when it is"
    " made (JOBQ_SERVICE_BUS_DEDUP_WINDOW)",
    "--emulate-tty": "output is read as it comes; for Python tasks set PYTHONUNBUFFERED=1",
    "--heartbeat": "leave it out: the lease is always renewed",
    "--num-retries": "it is a task's, given when that is pushed: push --num-retries",
    "--no-heartbeat": "leave it out: the lease is always renewed, however short it is",
    "--num-workers": "leave it out: tasks are pushed in batches",
    "-j": "it is -n: worker -n 8",
    "--proc": "push a function with --call MODULE:FUNCTION",
    "--visibility-timeout": "it is --lease of `pull`, or JOBQ_VISIBILITY_TIMEOUT",
}
