"""Variables that a process is given by a descriptor: rules.md 3, A6."""

import os
import subprocess
import sys

from jobq.run import withheld

RESTORED = "from jobq.run.withheld import restore; restore(); import os; print(ascii(dict(os.environb)))"


def test_a6_they_come_as_they_were_and_leave_nothing() -> None:
    variables = {"EMPTY": "", "LINES": "a\nb=c", "BYTES": os.fsdecode(b"\xff\xc3\xbc"), "LARGE": "x" * 100_000}
    file = withheld.write_file(variables)
    for _ in range(2):  # as often as a worker is started again
        descriptor = withheld.send_by_socket(file)
        started = subprocess.run(
            [sys.executable, "-c", RESTORED],
            env={"PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C.UTF-8", withheld.VARIABLE: str(descriptor)},
            pass_fds=[descriptor],
            capture_output=True,
            check=True,
        )
        os.close(descriptor)
        has = eval(started.stdout)
        assert has == {os.fsencode(name): os.fsencode(value) for name, value in variables.items()} | {
            b"LC_ALL": b"C.UTF-8",
            b"PYTHONPATH": has[b"PYTHONPATH"],
        }
    os.close(file)
