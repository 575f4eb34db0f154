"""The guardian and nonsense: it never hangs, never dies without killing its tasks, ends the connection (P2, P4, P5)."""

import json
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobq.run.guardian import protocol
from jobq.run.guardian.inbox import Inbox
from jobq.run.guardian.protocol import LOST, Receiver, Sender, WireError
from jobq.run.guardian.system import System
from tests.guardian.peer import SPAWN, Peer
from tests.guardian.stage import ENV, SECONDS, boottime, gone, hostile, living, marker, state, until

pytestmark = pytest.mark.check

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def frame(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


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
    frame(b'{"op": "ended"}'),
    protocol.encode(SPAWN),  # without its descriptors
    protocol.encode({**SPAWN, "id": 1}),  # in use
]
BAD_SPAWNS = [{"id": True}, {"id": "2"}, {"argv": []}, {"argv": [""]}, {"argv": "true"}, {"argv": [1]}, {"env": []}]
BAD_SPAWNS += [{"env": {"A": 1}}, {"cwd": 1}, {"deadline": "soon"}, {"deadline": True}, {"id": 1}]


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
    peer.say(protocol.encode({**SPAWN, **fault}), (write, write))
    os.close(write)
    assert select.select([read], [], [], SECONDS)[0]  # nobody holds the other end any more
    assert os.read(read, 1) == b""
    os.close(read)
    assert peer.is_ended()
    assert gone([mark]) == {}


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_p5_any_other_number_of_descriptors_is_nonsense(peer: Peer, count: int) -> None:
    read, write = os.pipe()
    peer.say(protocol.encode(SPAWN), (write,) * count)
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
    {"op": st.sampled_from(["spawn", "extend", "signal", "kill", "hello"]) | VALUES},
    optional={
        "id": st.integers(0, 3) | VALUES,
        "argv": st.just(["true"]) | VALUES,
        "env": st.just({}) | VALUES,
        "cwd": st.none() | VALUES,
        "deadline": st.none() | st.floats() | VALUES,
        "number": st.integers(0, 70) | VALUES,
        "forked": st.booleans() | VALUES,
        "user": st.none() | VALUES,
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
        peer.say(protocol.encode({**SPAWN, "argv": ["/bin/true"], "id": number}), (null, null))
    os.close(null)
    peer.say(protocol.encode({"op": "extend", "id": 1, "deadline": 1}))
    assert gone([mark], SECONDS) == {}
    assert state(peer.popen.pid) in "RS"
    ends, starts = 0, 1
    while ends < 499:
        message = peer.hear()
        ends += message["op"] == "ended"
        starts += message["op"] == "started"
        assert starts >= ends  # started comes before ended
    assert starts == 499


def test_p1_after_a_stop_all_that_waits_is_read_before_a_deadline_counts(peer: Peer) -> None:
    """The renewal stands behind more starts than the socket holds; each costs a fork, and their sum seconds."""
    mark = marker()
    peer.spawn(mark)
    peer.say(protocol.encode({"op": "extend", "id": 1, "deadline": boottime() + 1.0}))
    os.kill(peer.popen.pid, signal.SIGSTOP)
    starts = 300
    padding = {"PADDING": "x" * 4096}

    def say_all() -> None:
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(2, starts + 2):
            peer.say(protocol.encode({**SPAWN, "argv": ["/bin/true"], "env": padding, "id": number}), (null, null))
        os.close(null)
        peer.say(protocol.encode({"op": "extend", "id": 1, "deadline": boottime() + 1000}))

    with ThreadPoolExecutor(1) as saying:
        said = saying.submit(say_all)
        time.sleep(1.5)  # the time itself is the subject: the deadline passes while the guardian is stopped
        assert not said.done(), "all of it fits in the socket"
        os.kill(peer.popen.pid, signal.SIGCONT)
        ends = 0
        while ends < starts:
            message = peer.hear()
            ends += message["op"] == "ended"
            assert message["id"] != 1
    assert len(living(mark)) == 2
    peer.say(protocol.encode({"op": "kill", "id": 1}))
    assert gone([mark]) == {}


def test_p1_a_worker_that_never_stops_writing_delays_no_deadline(peer: Peer) -> None:
    mark = marker()
    peer.spawn(mark)
    deadline = boottime() + 0.5
    peer.say(protocol.encode({"op": "extend", "id": 1, "deadline": deadline}))
    flood = protocol.encode({"op": "extend", "id": 2, "deadline": 1e9}) * 1000
    ended = threading.Event()

    def write_on() -> None:
        while not ended.is_set():
            peer.say(flood)

    with ThreadPoolExecutor(1) as writing:
        writing.submit(write_on)
        try:
            assert gone([mark], 0.5 + 3.0) == {}
        finally:
            ended.set()


def test_p1_a_renewal_moves_the_deadline_of_a_start_that_waits(peer: Peer) -> None:
    """In both directions: what was to live long is killed early, too."""
    lives, dies = marker(), marker()
    os.kill(peer.popen.pid, signal.SIGSTOP)
    null = os.open("/dev/null", os.O_RDWR)
    now = boottime()
    for number, mark, first, then in ((2, lives, now + 0.5, now + 1000), (3, dies, now + 1000, now + 0.5)):
        argv = hostile("setsid", mark)
        start = {**SPAWN, "argv": argv, "env": ENV, "id": number, "deadline": first}
        peer.say(protocol.encode(start), (null, null))
        peer.say(protocol.encode({"op": "extend", "id": number, "deadline": then}))
    os.close(null)
    time.sleep(1.0)  # the time itself is the subject
    os.kill(peer.popen.pid, signal.SIGCONT)
    assert {peer.hear()["id"] for _ in range(2)} <= {2, 3}
    until(lambda: len(living(lives)) == 2)
    assert gone([dies]) == {}


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
        protocol.close_all(pipe)
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
    protocol.close_all(taken)
    sender.send({"op": "second"}, (os.dup(null), os.dup(null)))
    receiver.read()
    second = receiver.take_descriptors()
    assert LOST not in second
    protocol.close_all(second)
    os.close(null)
    ours.close()
    theirs.close()


def test_a_frame_that_is_too_large_is_not_sent() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with pytest.raises(WireError, match="at most"):
        Sender(ours).send({"op": "x" * protocol.MAX_FRAME_BYTES}, (write,))
    assert os.read(read, 1) == b""  # its descriptor was closed
    os.close(read)
    ours.close()
    theirs.close()


_ENVIRONMENTS = st.lists(
    st.dictionaries(st.sampled_from("ABCDE"), st.sampled_from(["", "1", "2", "\udcff"])), min_size=1, max_size=12
)


@given(_ENVIRONMENTS)
def test_a_start_carries_what_its_environment_has_otherwise_and_no_more(environments: list[dict[str, str]]) -> None:
    """Whatever the tasks before had: a variable of one is none of the next."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        inbox = Inbox(theirs, cast("Any", None), System())
        former: dict[str, str] = {}
        for number, environment in enumerate(environments):
            changed, unset = protocol.difference(former, environment)
            message = {"op": "spawn", "id": number, "argv": ["true"], "env": changed, "unset": unset}
            ours.sendall(protocol.encode(message))
            former = environment
        assert inbox.read()
        assert [inbox.next()["env"] for _ in environments] == environments
