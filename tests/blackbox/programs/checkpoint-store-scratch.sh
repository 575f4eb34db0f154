#!/bin/bash
# docs/troubleshooting.md tells people to delete old files of --checkpoint-store themselves. `find STORE -mtime +N -delete` (here: N = now) takes the empty
# STORE/.jobq-scratch along; from then on every save of every running worker fails until it is restarted, the last one of a preempted task included.
# Exit 0 when mended, 1 while the fault is there.
export JOBQ_HOME=$(mktemp -d); S=$(mktemp -d); unset JOBQ_QUEUE; cd "$JOBQ_HOME"
jobq -q demo push --num-retries 0 -c "find $S -mindepth 1 -delete"
jobq -q demo push --num-retries 0 --id save -c 'echo x > "$JOBQ_CHECKPOINT_DIR/w"; jobq checkpoint --dir'
timeout 60 jobq demo worker --checkpoint-store $S --log-format text 2>&1 | cut -c1-200 | grep -v started
jobq demo dead list; [ "$(jobq demo dead list --json | wc -l)" = 0 ]
