"""A zygote that lies over the wire (P4): the user's imports live in it."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq.run.guardian import protocol
from tests.guardian.peer import SPAWN, Peer
from tests.guardian.stage import ENV, SECONDS

# The zygote is as much a stranger: the user's imports live in it. This one says what it is told to.
LIAR = """
import json, os, socket, sys, time
connection = socket.socket(fileno=os.dup(int(sys.argv[1])))
connection.sendall(bytes.fromhex(os.environ["READY"]))
connection.recv(100)
connection.sendall(bytes.fromhex(os.environ["LIE"]))
time.sleep(1000)
"""
LIES = [
    {"op": "forked", "id": 2},
    {"op": "forked", "id": 2, "pid": "1"},
    {"op": "forked", "id": 2, "pid": 1},
    {"op": "forked", "id": 2, "pid": -1},
    {"op": "forked", "id": 2, "pid": 2**70},
    {"op": "forked", "id": 99, "pid": 4_000_000},
    {"op": "forked", "id": [], "pid": 4_000_000},
    {"op": "unforked", "id": 99},
    {"op": "unforked", "id": 2},
    {"op": "ready"},
    {"op": "spawn"},
]


def lied_to(lie: dict[str, Any], folder: Path) -> Iterator[Peer]:
    (folder / "liar.py").write_text(LIAR)
    path = f"{folder}:{Path(__file__).parents[3]}"
    env = {
        **ENV,
        "PYTHONPATH": path,
        "READY": protocol.encode({"op": "ready"}).hex(),
        "LIE": protocol.encode(lie).hex(),
    }
    peer = Peer()
    peer.say(protocol.encode({"op": "preload", "id": 0, "modules": ["liar"], "env": env}))
    try:
        assert peer.hear() == {"op": "zygote", "state": "ready", "why": ""}
        yield peer
    finally:
        peer.close()


@pytest.mark.parametrize("lie", LIES, ids=json.dumps)
def test_p4_a_zygote_that_lies_is_killed_and_costs_no_task(lie: dict[str, Any], tmp_path: Path) -> None:
    for peer in lied_to(lie, tmp_path):
        null = os.open("/dev/null", os.O_RDWR)
        peer.say(protocol.encode({**SPAWN, "forked": True, "argv": ["/bin/sh", "-c", "exit 9"]}), (null, null))
        os.close(null)
        is_true = lie == {"op": "unforked", "id": 2}  # it may say so of what it was asked for
        awaited = {"ended"} if is_true else {"ended", "zygote"}  # in any order: the task starts cold meanwhile
        heard: list[dict[str, Any]] = []
        while not awaited <= {message["op"] for message in heard}:
            heard.append(peer.hear())
        assert [message["code"] for message in heard if message["op"] == "ended"] == [9]


def test_p4_a_number_that_a_zygote_names_is_not_signalled(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["/bin/sleep", "1000"])
    try:
        for peer in lied_to({"op": "forked", "id": 2, "pid": bystander.pid}, tmp_path):
            null = os.open("/dev/null", os.O_RDWR)
            peer.say(protocol.encode({**SPAWN, "forked": True, "deadline": 1}), (null, null))
            os.close(null)
            peer.say(protocol.encode({"op": "kill", "id": 2}))
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.popen.wait(SECONDS) == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
