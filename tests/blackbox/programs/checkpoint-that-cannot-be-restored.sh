#!/bin/bash
# `jobq checkpoint --dir` accepts (exit 0) a folder whose archive no attempt can restore: pack has no bound where unpack has one
# (64 MiB of pax headers: names). Exit 0 when mended (refused at the save, or restored), 1 while the fault is there.

export JOBQ_HOME=$(mktemp -d); S=$(mktemp -d); cd "$JOBQ_HOME"; unset JOBQ_QUEUE
cat > t.py <<'P'
import os, subprocess, sys
f = os.environ["JOBQ_CHECKPOINT_DIR"]; attempt = int(os.environ["JOBQ_ATTEMPT"])
print("attempt", attempt, "finds", len(os.listdir(f)), "entries", flush=True)
if attempt > 1: sys.exit(0)
deep = f
while len(deep) + 201 < 3800: deep += "/" + "x" * 200
os.makedirs(deep); d = os.open(deep, os.O_RDONLY)
for i in range(18500): os.close(os.open("n%05d" % i, os.O_CREAT | os.O_WRONLY, dir_fd=d))   # empty files, far below JOBQ_CHECKPOINT_MAX
code = subprocess.call(["jobq", "checkpoint", "--dir"]); print("checkpoint --dir:", code, flush=True)
open(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "code"), "w").write(str(code)); sys.exit(1)
P
jobq -q demo push -- python3 "$PWD/t.py"
timeout 300 jobq demo worker --backoff 0s --checkpoint-store "$S" --log-format text > out 2>&1
grep -vE "started \(attempt|worker " out | cut -c1-250
jobq demo dead list; n=$(jobq demo dead list --json | wc -l); code=$(cat code); rm -rf "$S"
echo "saved with $code, dead letters: $n"; [ "$code" != 0 ] || [ "$n" = 0 ]
