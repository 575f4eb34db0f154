#!/bin/bash
# With JOBQ_JOURNAL=off `batch cancel` "stops what runs" (docs/batches.md) - but a worker without a journal never hears of it, and nobody is told.
# Exit 0 when mended (stopped, or refused/told), 1 while the fault is there.
export JOBQ_ALLOW_SHORT_LEASE=1 JOBQ_JOURNAL=off
export JOBQ_HOME=$(mktemp -d); unset JOBQ_QUEUE; cd "$JOBQ_HOME"; SPEC=${1:-demo}; jobq $SPEC create >/dev/null 2>&1
jobq -q $SPEC push --batch s7 -c "sleep 20; echo ran to its end > $JOBQ_HOME/end" -c true
jobq $SPEC worker --visibility-timeout 4s --log-format text --stop-grace 1s 2> err >/dev/null & w=$!; sleep 2.5
jobq $SPEC batch cancel s7 --yes; rc=$?; echo "batch cancel: $rc"
jobq $SPEC cancel --where batch=s7 --yes; echo "cancel: $?"
wait $w; cut -c1-160 err; jobq $SPEC batch show s7; cat end 2>/dev/null
[ ! -e end ] || [ $rc != 0 ]
