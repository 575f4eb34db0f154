#!/bin/sh
# Three machines have the same line in their crontab; one of them runs it. A second one takes over when the first dies in the middle.
#   0 3 * * *  jobq ACCOUNT/QUEUE lease run nightly --no-wait --conflict-exit-code 0 -- ./backup.sh
set -eu
export JOBQ_HOME="${JOBQ_HOME:-$(mktemp -d)}"

for machine in a b c; do
    jobq demo lease run nightly --no-wait --conflict-exit-code 0 -- \
        sh -c 'echo "$1 backs up, with token $JOBQ_LEASE_TOKEN" >> "$2"; sleep 3' - "$machine" "$JOBQ_HOME/log" &
done
wait
cat "$JOBQ_HOME/log"
