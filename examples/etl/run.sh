#!/bin/sh
# 10,000 rows of a table, a task for each 1,000. The walk keeps a cursor under the name `orders`: one that was interrupted is finished by the
# same line.
set -eu
cd "$(dirname "$0")"
export JOBQ_HOME="${JOBQ_HOME:-$(mktemp -d)}"
mkdir -p "$JOBQ_HOME/out"

python3 -c 'import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as database:
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
    database.executemany("INSERT INTO orders VALUES (?, ?, ?)", ((n, f"c{n % 7}", n) for n in range(1, 10001)))' "$JOBQ_HOME/orders.db"

push() {
    jobq demo fanout orders --sql "$JOBQ_HOME/orders.db" 'SELECT id FROM orders' --key id --batch 1000 \
        -- sh transform.sh "$JOBQ_HOME/orders.db" '{first}' '{last}' "$JOBQ_HOME/out/{first}.csv"
}
push
push    # as after an interruption: nothing is queued twice
jobq demo worker -n 2
cat "$JOBQ_HOME"/out/*.csv | python3 -c 'import sys
print("orders of all pages:", sum(int(line.split(",")[1]) for line in sys.stdin))'
