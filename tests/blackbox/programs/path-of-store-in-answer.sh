#!/bin/bash
# An answer to the weakest token names the file of the store on the service's machine: "queue 'delq' does not exist ... (looked in /home/.../queues.db)". error_responses.refused_for says
# "what it says of the store's place stays in the log (A5)", but passes on str(QueueNotFound). Seen once a queue that the service had open was deleted. Exit 0 when mended.
export JOBQ_HOME=$(mktemp -d); unset JOBQ_HTTP_TOKEN; P=${PORT:-18802}; B=http://127.0.0.1:$P
$JOBQ serve main --port $P > $JOBQ_HOME/o 2> $JOBQ_HOME/e & S=$!; sleep 3
T=$($JOBQ serve token create main --scope watch 2>&1 | grep -o 'jobq_[A-Za-z0-9_-]*' | head -1)
$JOBQ -q $B/delq push -c true >/dev/null 2>&1 || $JOBQ $B/delq push -c true >/dev/null 2>&1
$JOBQ delq delete --force >/dev/null 2>&1
for k in 1 2 3; do for p in "GET /api/queues/delq" "POST /api/queues/delq/views/queue" "GET /api/queues/delq/journal/stats" "GET /api/queues/delq/shapes"; do set -- $p
  curl -s -X $1 --oauth2-bearer $T -H 'Content-Type: application/json' $([ $1 = POST ] && echo -d {}) $B$2; echo; done; done > $JOBQ_HOME/answers
kill $S; wait $S 2>/dev/null
grep -F "$JOBQ_HOME" $JOBQ_HOME/answers | sort | uniq -c
if grep -qF "$JOBQ_HOME" $JOBQ_HOME/answers; then echo FAULT; exit 1; fi; echo mended
