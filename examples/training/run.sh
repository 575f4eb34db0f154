#!/bin/sh
# The worker is killed as a cloud does, without a word; the next one goes on from the last checkpoint.
set -eu
cd "$(dirname "$0")"
export JOBQ_HOME="${JOBQ_HOME:-$(mktemp -d)}"

jobq demo push --batch training -- python3 train.py
jobq demo worker --checkpoint-store "$JOBQ_HOME/store" > "$JOBQ_HOME/log" &
worker=$!
until grep -q 'attempt 1 begins' "$JOBQ_HOME/log"; do sleep 0.1; done
while ! ls "$JOBQ_HOME"/store/*/*/*.tar > /dev/null 2>&1; do sleep 0.1; done
kill -9 "$worker"
wait "$worker" || true
jobq demo worker --checkpoint-store "$JOBQ_HOME/store"
jobq demo results --batch training -o "$JOBQ_HOME/training.csv"
cat "$JOBQ_HOME/training.csv"
