#!/bin/sh
# A sweep of 12 fits; one learning rate diverges. Needs NumPy.
set -eu
cd "$(dirname "$0")"
export JOBQ_HOME="${JOBQ_HOME:-$(mktemp -d)}"

jobq demo push --batch fits --num-retries 0 --grid lr=0.01,0.1,0.5,3 --grid seed=1..3 -- python3 fit.py --lr={lr} --seed={seed}
jobq demo worker -n 2
jobq demo batch show fits
jobq demo dead list --group-by exit,error     # why three have failed
jobq demo results --batch fits -o "$JOBQ_HOME/fits.csv"
cat "$JOBQ_HOME/fits.csv"
