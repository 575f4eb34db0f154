#!/bin/sh
# Transform the orders FIRST to LAST of a database: sums of cents by customer, as one file for each page. Writing it under
# another name first makes it whole or absent, and a second run of the same page writes the same.
set -eu
sqlite='import sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute(
    "SELECT customer, sum(cents) FROM orders WHERE id BETWEEN ? AND ? GROUP BY customer ORDER BY customer", sys.argv[2:])
print(*(f"{customer},{cents}" for customer, cents in rows), sep="\n")'
python3 -c "$sqlite" "$1" "$2" "$3" > "$4.new"
mv "$4.new" "$4"
