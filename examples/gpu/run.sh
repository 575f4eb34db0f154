#!/bin/sh
# One worker for a machine with two cards, which are none: tasks of one card each, and small ones that need no card beside them.
# On a machine that has cards the worker says `--gpus auto`; `jobq config` shows what that finds.
set -eu
cd "$(dirname "$0")"
export JOBQ_HOME="${JOBQ_HOME:-$(mktemp -d)}"

for number in 1 2 3 4 5 6; do
    jobq demo push --num-retries 0 --gpus 1 --cpus 1 -- python3 card.py "$JOBQ_HOME"
    jobq demo push --num-retries 0 -c "echo small task $number; test -z \"\$CUDA_VISIBLE_DEVICES\""
done
jobq demo worker -n auto --cpus 4 --gpus 0,1
jobq demo size
