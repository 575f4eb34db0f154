#!/bin/bash
# `batch cancel` "ends what waits" (docs/batches.md). On the embedded queue a task whose lease has run out (its worker is gone, it counts
# as visible, may be claimed by anybody) is not ended: with no worker left the batch never finishes and `batch wait` never returns.
# PostgreSQL and memory end it. Exit 0 when mended, 1 while the fault is there.
export JOBQ_ALLOW_SHORT_LEASE=1
SPEC=${1:-demo}; export JOBQ_HOME=$(mktemp -d); unset JOBQ_QUEUE; cd "$JOBQ_HOME"
jobq $SPEC create >/dev/null 2>&1
jobq -q $SPEC push --batch s7 --num-retries 0 -c 'exec sleep 1000' -c true
jobq -q $SPEC worker --visibility-timeout 4s 2>/dev/null >/dev/null & w=$!
sleep 2.5
kids() { for c in $(cat /proc/$1/task/*/children 2>/dev/null); do echo $c; kids $c; done; }
all="$w $(kids $w)"; kill -9 $all 2>/dev/null; wait $w 2>/dev/null
sleep 5                                   # the lease is over: the task waits
jobq $SPEC size; jobq $SPEC batch show s7 | grep tasks
jobq -q $SPEC batch cancel s7 --yes
jobq $SPEC batch show s7
timeout 8 jobq -q $SPEC batch wait s7; rc=$?; echo "batch wait: $rc (124 = it still waits)"
[ $rc != 124 ]
