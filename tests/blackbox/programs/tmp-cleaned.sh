#!/bin/bash
# A task (or a nightly tmp cleaner that knows no flock: tmpreaper, tmpwatch, `rm -rf $TMPDIR/*`) removes the worker's folder in TMPDIR. From then on
# every later task of this worker gets a JOBQ_RESULT_FILE and a JOBQ_TASK_SOCKET in a folder that is not there, for the whole life of the worker.
# Exit 0 when mended (later tasks keep results and checkpoints), 1 while the fault is there.
export JOBQ_HOME=$(mktemp -d); T=$(mktemp -d); S=$(mktemp -d); unset JOBQ_QUEUE; cd "$JOBQ_HOME"
jobq -q demo push --num-retries 0 -c "rm -rf $T/*"                                    # one task's clean-up
for i in 1 2 3; do jobq -q demo push --num-retries 0 --id r$i -c "echo '{\"a\": $i}' > \$JOBQ_RESULT_FILE"; done
for i in 1 2 3; do jobq -q demo push --num-retries 0 --id c$i -c "jobq checkpoint $i"; done
TMPDIR=$T timeout 60 jobq demo worker --log-format text ${1:+--checkpoint-store $S} 2>&1 | grep -v "started (" | cut -c1-230
n=$(jobq demo dead list --json | wc -l); jobq demo dead list
r=$(for i in 1 2 3; do jobq demo status r$i --json; done | grep -c '"a"'); echo "dead letters: $n; results kept: $r of 3"
[ "$n" = 0 ] && [ "$r" = 3 ]
