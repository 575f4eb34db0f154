"""`python3 neighbour.py FOLDER`: what one task tries with another, which has written its number and paths to FOLDER.

It writes to FOLDER/seen what it can do, and to FOLDER/done that the other may end. Its Python is the system's, which
any user can run.
"""

import json
import os
import resource
import socket
import sys
import time
from pathlib import Path


def main(folder: Path) -> None:
    while not (folder / "there").exists():
        time.sleep(0.01)
    pid, other, result = (folder / "there").read_text().split()
    own, own_folder = os.environ["JOBQ_TASK_SOCKET"], Path(os.environ["JOBQ_RESULT_FILE"]).parent
    status = Path("/proc/self/status").read_text()
    seen = {
        "environment": can(lambda: Path(f"/proc/{pid}/environ").read_bytes()),
        "files": can(lambda: list(Path(result).parent.iterdir())),
        "socket": can(lambda: ask(other)),
        "signal": can(lambda: os.kill(int(pid), 0)),
        "own socket": ask(own),
        "own folder": oct(own_folder.stat().st_mode & 0o777),
        "ids": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
        "umask": oct(os.umask(0)),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
        "processes": resource.getrlimit(resource.RLIMIT_NPROC)[1],
        "new privileges": "NoNewPrivs:\t1" not in status,
        "capabilities": [line for line in status.splitlines() if line[:6] in ("CapEff", "CapPrm", "CapAmb")],
        "called": [os.environ.get(name) for name in ("HOME", "USER", "LOGNAME")],
        "output": can(lambda: Path("/dev/stdout").write_text("output\n")),
    }
    (folder / "seen.part").write_text(json.dumps(seen))
    (folder / "seen.part").rename(folder / "seen")
    (folder / "done").touch()


def can(do: object) -> bool:
    try:
        do()  # type: ignore[operator]
    except PermissionError:
        return False
    return True


def ask(admitted: str) -> object:
    token, _, path = admitted.partition("@")
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(json.dumps({"token": token, "op": "progress", "share": 0.5}).encode() + b"\n")
        return json.loads(line.makefile().readline())


main(Path(sys.argv[1]))
