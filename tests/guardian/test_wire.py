"""The guardian and nonsense: it never hangs, never dies without killing its tasks, ends the connection (P2, P4, P5)."""

import array
import json
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobq.run.guardian import wire
from jobq.run.guardian.wire import LOST, Receiver, Sender, WireError
from tests.guardian.stage import ENV, SECONDS, gone, hostile, living, marker, state, until

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Peer:
    """A worker that says what it wants to a real guardian."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "jobq.run.guardian", "--attached", str(theirs.fileno())]
            self.popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)
        self.socket.settimeout(SECONDS)
        self._receiver = Receiver(self.socket, wire.HANDLE_DESCRIPTORS)
        assert self.hear()["op"] == "hello"

    def hear(self) -> dict[str, Any]:
        while (message := self._receiver.next()) is None:
            assert self._receiver.read(), "the guardian ended the connection"
        if message.get("handle"):
            wire.close_all(self._receiver.take_descriptors())
        return message

    def say(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            sent = self.socket.sendmsg([data], ancillary)
            self.socket.sendall(data[sent:])
        except OSError:
            pass  # the guardian has ended the connection meanwhile

    def spawn(self, mark: str, number: int = 1, kind: str = "setsid") -> None:
        message = {"op": "spawn", "id": number, "argv": hostile(kind, mark), "env": ENV, "cwd": None, "deadline": None}
        null = os.open("/dev/null", os.O_RDWR)
        self.say(wire.encode(message), (null, null))
        os.close(null)
        assert self.hear()["op"] == "started"
        until(lambda: len(living(mark)) == 2)

    def is_ended(self) -> bool:
        """Read until the guardian ends the connection."""
        try:
            while self._receiver.read():
                self._receiver.close_descriptors()
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self._receiver.close_descriptors()
        self.socket.close()
        try:
            assert self.popen.wait(SECONDS) == 0
        finally:
            self.popen.kill()
            self.popen.wait()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def frame(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


SPAWN = {"op": "spawn", "id": 2, "argv": ["true"], "env": {}, "cwd": None, "deadline": None}
NONSENSE = [
    b"\xff\xff\xff\xff",
    frame(b""),
    frame(b"\xff"),
    frame(b"null"),
    frame(b"[]"),
    frame(b"[" * 100_000),
    frame(b'{"op": 1}'),
    frame(b'{"op": "extend", "id": 1, "deadline": NaN}'),
    frame(b'{"op": "extend", "id": 1, "deadline": 1e999}'),
    frame(b'{"op": "extend", "id": 1, "deadline": 1' + b"0" * 400 + b"}"),
    frame(b'{"op": "extend", "id": 1, "deadline": null}'),
    frame(b'{"op": "extend", "id": 1, "deadline": true}'),
    frame(b'{"op": "extend", "id": 1}'),
    frame(b'{"op": "extend", "id": [], "deadline": 1}'),
    frame(b'{"op": "signal", "id": 1, "number": 99999}'),
    frame(b'{"op": "signal", "id": 1, "number": "9"}'),
    frame(b'{"op": "signal", "id": 1, "number": -1}'),
    frame(b'{"op": "hello", "id": 1}'),
    frame(b'{"op": "preload", "id": 0}'),
    frame(b'{"op": "preload", "id": 0, "modules": "m", "env": {}}'),
    frame(b'{"op": "preload", "id": 0, "modules": ["m\\u0000"], "env": {}}'),
    frame(b'{"op": "preload", "id": 0, "modules": [1], "env": {}}'),
    frame(b'{"op": "preload", "id": 0, "modules": [], "env": {"A": 1}}'),
    frame(b'{"op": "preload", "id": 0, "modules": [], "env": {}}') * 2,
    frame(b'{"op": "ended"}'),
    wire.encode(SPAWN),  # without its descriptors
    wire.encode({**SPAWN, "id": 1}),  # in use
]
BAD_SPAWNS = [{"id": True}, {"id": "2"}, {"argv": []}, {"argv": [""]}, {"argv": "true"}, {"argv": [1]}, {"env": []}]
BAD_SPAWNS += [{"env": {"A": 1}}, {"cwd": 1}, {"deadline": "soon"}, {"deadline": True}, {"id": 1}]
BAD_SPAWNS += [{"forked": None}, {"forked": 1}]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
def test_p2_nonsense_ends_the_connection_and_the_tasks(peer: Peer, nonsense: bytes) -> None:
    mark = marker()
    peer.spawn(mark)
    peer.say(nonsense)
    assert peer.is_ended()
    assert gone([mark]) == {}
    assert peer.popen.wait(SECONDS) == 0


@pytest.mark.parametrize("fault", BAD_SPAWNS, ids=json.dumps)
def test_p5_descriptors_that_come_with_nonsense_are_closed(peer: Peer, fault: dict[str, Any]) -> None:
    mark = marker()
    peer.spawn(mark)
    read, write = os.pipe()
    peer.say(wire.encode({**SPAWN, **fault}), (write, write))
    os.close(write)
    assert select.select([read], [], [], SECONDS)[0]  # nobody holds the other end any more
    assert os.read(read, 1) == b""
    os.close(read)
    assert peer.is_ended()
    assert gone([mark]) == {}


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_p5_any_other_number_of_descriptors_is_nonsense(peer: Peer, count: int) -> None:
    read, write = os.pipe()
    peer.say(wire.encode(SPAWN), (write,) * count)
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)
    assert peer.is_ended()


@FEW
@given(st.binary(min_size=4, max_size=200))
def test_p2_any_bytes(data: bytes) -> None:
    peer = Peer()
    peer.say(data)
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.is_ended()
    peer.close()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.fixed_dictionaries(
    {"op": st.sampled_from(["spawn", "extend", "signal", "kill", "hello", "preload"]) | VALUES},
    optional={
        "id": st.integers(0, 3) | VALUES,
        "argv": st.just(["true"]) | VALUES,
        "env": st.just({}) | VALUES,
        "cwd": st.none() | VALUES,
        "deadline": st.none() | st.floats() | VALUES,
        "number": st.integers(0, 70) | VALUES,
        "forked": st.booleans() | VALUES,
        "modules": st.sampled_from([["json"], ["no_such"], []]) | VALUES,
    },
)


@FEW
@given(st.lists(st.tuples(MESSAGES, st.sampled_from([0, 0, 2, 1])), max_size=8))
def test_p2_any_messages(messages: list[tuple[dict[str, Any], int]]) -> None:
    peer = Peer()
    mark = marker()
    peer.spawn(mark)
    null = os.open("/dev/null", os.O_RDWR)
    for message, count in messages:
        peer.say(frame(json.dumps(message).encode()), (null,) * count)
    os.close(null)
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.is_ended()
    assert gone([mark]) == {}
    peer.close()


def test_p1_a_worker_that_reads_nothing_does_not_hold_it_up(peer: Peer) -> None:
    mark = marker()
    peer.spawn(mark)
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(2, 500):  # each is answered twice; the answers do not fit in the socket
        peer.say(wire.encode({**SPAWN, "argv": ["/bin/true"], "id": number}), (null, null))
    os.close(null)
    peer.say(wire.encode({"op": "extend", "id": 1, "deadline": 1}))
    assert gone([mark], SECONDS) == {}
    assert state(peer.popen.pid) in "RS"
    ends, starts = 0, 1
    while ends < 499:
        message = peer.hear()
        ends += message["op"] == "ended"
        starts += message["op"] == "started"
        assert starts >= ends  # started comes before ended
    assert starts == 499


def test_p4_a_handle_that_waits_is_sent_later_and_is_the_right_one() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    sender, receiver = Sender(ours), Receiver(theirs, 1)
    pipes = [os.pipe() for _ in range(20)]
    for number, (read, _) in enumerate(pipes):
        sender.send({"op": "started", "id": number, "padding": "x" * 50_000}, (os.dup(read),))
        os.write(pipes[number][1], bytes([number]))
    assert sender.waiting
    heard = 0
    while heard < len(pipes):
        sender.flush()
        receiver.read()
        while (message := receiver.next()) is not None:
            (descriptor,) = receiver.take_descriptors()
            assert os.read(descriptor, 1)[0] == message["id"] == heard
            os.close(descriptor)
            heard += 1
    for pipe in pipes:
        wire.close_all(pipe)
    ours.close()
    theirs.close()


def test_a_descriptor_for_which_there_is_no_room_is_lost_alone() -> None:
    import resource  # noqa: PLC0415 - for this test only

    ours, theirs = socket.socketpair()
    sender, receiver = Sender(ours), Receiver(theirs, 2)
    null = os.open("/dev/null", os.O_RDWR)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    sender.send({"op": "first"}, (os.dup(null), os.dup(null)))
    lowest = os.dup(null)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, before[1]))
    try:
        receiver.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert receiver.next() == {"op": "first"}
    taken = receiver.take_descriptors()
    assert LOST in taken
    wire.close_all(taken)
    sender.send({"op": "second"}, (os.dup(null), os.dup(null)))
    receiver.read()
    second = receiver.take_descriptors()
    assert LOST not in second
    wire.close_all(second)
    os.close(null)
    ours.close()
    theirs.close()


def test_a_frame_that_is_too_large_is_not_sent() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with pytest.raises(WireError, match="at most"):
        Sender(ours).send({"op": "x" * wire.MAX_FRAME_BYTES}, (write,))
    assert os.read(read, 1) == b""  # its descriptor was closed
    os.close(read)
    ours.close()
    theirs.close()


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
    path = f"{folder}:{Path(__file__).parents[2]}"
    env = {**ENV, "PYTHONPATH": path, "READY": wire.encode({"op": "ready"}).hex(), "LIE": wire.encode(lie).hex()}
    peer = Peer()
    peer.say(wire.encode({"op": "preload", "id": 0, "modules": ["liar"], "env": env}))
    try:
        assert peer.hear() == {"op": "zygote", "state": "ready", "why": ""}
        yield peer
    finally:
        peer.close()


@pytest.mark.parametrize("lie", LIES, ids=json.dumps)
def test_p4_a_zygote_that_lies_is_killed_and_costs_no_task(lie: dict[str, Any], tmp_path: Path) -> None:
    for peer in lied_to(lie, tmp_path):
        null = os.open("/dev/null", os.O_RDWR)
        peer.say(wire.encode({**SPAWN, "forked": True, "argv": ["/bin/sh", "-c", "exit 9"]}), (null, null))
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
            peer.say(wire.encode({**SPAWN, "forked": True, "deadline": 1}), (null, null))
            os.close(null)
            peer.say(wire.encode({"op": "kill", "id": 2}))
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.popen.wait(SECONDS) == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
