"""What a callback is given, what is refused at once, and what is told without telling a value (A5)."""

import asyncio
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from jobq.clock import Moment
from jobq.errors import ConfigurationError, LockLost
from jobq.lease.keeper import LeaseKeeper
from jobq.lease.timing import LeaseTiming
from jobq.run.attempt.attempt_journal import AttemptJournal
from jobq.run.callbacks.callback import ArgumentsRefused, Callback, CallbackSignature
from jobq.run.callbacks.callback_channel import CallbackChannel
from jobq.run.callbacks.process_runner import portable
from jobq.run.worker.pull_one import way_of
from jobq.task import Task
from jobq.task_client import MAX_CHECKPOINT_BYTES, checked_checkpoint
from jobq.testing.clock import VirtualClock
from tests.process import callbacks
from tests.unit.scripted_delivery import ScriptedDelivery


def plain(n: int, rate: float = 0.1) -> None:
    pass


async def asynchronous(n: int, delivery: object) -> None:
    pass


def by_position(n: int, /) -> None:
    pass


def generator(n: int) -> Iterator[int]:
    yield n


async def asynchronous_generator(n: int) -> AsyncIterator[int]:
    yield n


def print_all(*n: int) -> None:
    pass


class Model:
    async def __call__(self, n: int) -> None:
        pass

    def method(self, n: int) -> None:
        pass


@pytest.mark.parametrize(
    ("callback", "text"),
    [
        ("training:fold", "a function, not str"),
        (by_position, "by_position takes 'n' by position only"),
        (generator, "generator is a generator"),
        (asynchronous_generator, "is a generator"),
        (functools.partial(generator, n=1), "generator is a generator"),
    ],
)
def test_what_can_never_work_is_refused_at_once(callback: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        CallbackSignature(callback)


def test_threads_are_for_plain_callbacks() -> None:
    with pytest.raises(ConfigurationError, match="asynchronous is asynchronous"):
        way_of(asynchronous, thread=True)
    with pytest.raises(ConfigurationError, match="commands are processes"):
        way_of(None, thread=True)


@pytest.mark.parametrize(
    ("callback", "kwargs", "text"),
    [
        (plain, {}, "missing 'n'"),
        (plain, {"rate": 1, "colour": "canary"}, "missing 'n'; unknown 'colour'"),
        (plain, {"n": "canary", "b": 1, "a": 1}, "unknown 'b', 'a'"),
        (asynchronous, {"n": 1, "delivery": "canary"}, "'delivery', which is what asynchronous gets"),
        (print_all, {"n": 1}, "unknown 'n'"),
        (functools.partial(plain, 3), {"n": "canary"}, "unknown 'n'"),
    ],
)
def test_arguments_that_do_not_fit_are_named_and_their_values_are_not(
    callback: Callback, kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(ArgumentsRefused) as refused:
        CallbackSignature(callback).arguments(Task.new(kwargs=kwargs))
    assert text in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"kwargs": {"n": 1}}, {"n": 1}),
        ({"command": "echo a"}, {"command": "echo a"}),
        ({"argv": ("echo", "a")}, {"argv": ["echo", "a"]}),
        ({"call": "training:fold", "kwargs": {"n": 1}}, {"call": "training:fold", "kwargs": {"n": 1}}),
        ({"call": "training:fold"}, {"call": "training:fold", "kwargs": {}}),
    ],
)
def test_a_task_gives_its_arguments_by_name(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert CallbackSignature(dict).arguments(Task.new(**fields)) == expected


def test_a_callback_asks_for_the_context_by_name() -> None:
    assert CallbackSignature(asynchronous).takes_context
    assert not CallbackSignature(plain).takes_context
    assert not CallbackSignature(lambda **_: None).takes_context
    assert CallbackSignature(asynchronous).arguments(Task.new(kwargs={"n": 1})) == {"n": 1}


def test_what_is_asynchronous_is_found_behind_partials_and_objects() -> None:
    found = [
        CallbackSignature(each).is_asynchronous
        for each in (asynchronous, functools.partial(asynchronous, n=1), Model())
    ]
    assert found == [True, True, True]
    assert not CallbackSignature(plain).is_asynchronous
    assert not CallbackSignature(Model).is_asynchronous  # calling the class makes an object


def test_a_function_that_can_be_imported_goes_by_its_name() -> None:
    assert portable(callbacks.double, "double") == "tests.process.callbacks:double"
    assert isinstance(portable(lambda: None, "it"), bytes)
    assert isinstance(portable(functools.partial(plain, 1), "it"), bytes)
    assert isinstance(portable(Model().method, "it"), bytes)


def test_what_cannot_be_taken_to_a_process_is_refused_at_once() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match=r"cannot pickle.*thread=True"):
        way_of(lambda: lock.acquire(), thread=False)  # noqa: PLW0108 - a closure is the point


@pytest.mark.parametrize(
    ("value", "error"),
    [(b"a", TypeError), (1, TypeError), ("a\0", ValueError), ("\ud800", ValueError), ("é" * 32769, ValueError)],
)
def test_a_checkpoint_that_no_next_attempt_could_be_given_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        checked_checkpoint(value)


def test_a_checkpoint_may_be_as_large_as_it_says() -> None:
    assert checked_checkpoint("a" * MAX_CHECKPOINT_BYTES)


class Caller:
    """What a callback's process would say, from a thread, byte by byte."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def ask(self, text: bytes) -> Any:
        self.socket.sendall(text + b"\n")
        return json.loads(self.file.readline())

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def a_keeper() -> tuple[LeaseKeeper, ScriptedDelivery]:
    clock = VirtualClock(boottime=1000.0)
    delivery = ScriptedDelivery(clock)
    return LeaseKeeper(
        AttemptJournal(delivery), since=Moment.of(clock), timing=LeaseTiming(lease=60.0, grace=0.0), clock=clock
    ), delivery


async def test_nonsense_on_the_line_is_answered_and_harms_nobody() -> None:
    keeper, _ = a_keeper()
    line = CallbackChannel({"kwargs": {}}, keeper)
    line.speaks_with(os.getpid())
    try:
        caller = await asyncio.to_thread(Caller, line.path)
        assert json.loads(await asyncio.to_thread(caller.file.readline)) == {"kwargs": {}}
        assert not Path(line.path).parent.exists()  # whoever comes second finds nothing (A11, P5)
        for nonsense in (b"[]", b"{", b"\xff", b'{"op": "settle"}', b'{"op": "checkpoint"}', b"[" * 100_000):
            assert "error" in await asyncio.to_thread(caller.ask, nonsense)
        assert not line.returned
        lease = await asyncio.to_thread(caller.ask, b'{"op": "lease"}')
        assert lease == {"remaining": 51.0, "lost": False}
        caller.close()
    finally:
        await line.close()
    await line.close()


async def test_a_stale_checkpoint_is_told_as_such_to_the_process() -> None:
    keeper, _ = a_keeper()
    keeper.lock_lost_event.set()
    line = CallbackChannel({}, keeper)
    line.speaks_with(os.getpid())
    try:
        caller = await asyncio.to_thread(Caller, line.path)
        await asyncio.to_thread(caller.file.readline)
        answer = await asyncio.to_thread(caller.ask, b'{"op": "checkpoint", "value": "a"}')
        assert answer["error"] == LockLost.__name__
        assert (await asyncio.to_thread(caller.ask, b'{"op": "lease"}'))["lost"] is True
        caller.close()
    finally:
        await line.close()


async def test_a_line_that_nobody_takes_leaves_nothing() -> None:
    line = CallbackChannel({}, cast("LeaseKeeper", None))
    assert Path(line.path).exists()
    assert Path(line.path).parent.stat().st_mode & 0o777 == 0o700
    await line.close()
    assert not Path(line.path).parent.exists()


async def test_a6_another_process_of_the_same_user_is_not_spoken_to() -> None:
    """A neighbour task could read what this one is given, and save checkpoints in its name."""
    keeper, delivery = a_keeper()
    line = CallbackChannel({"password": "s3cret"}, keeper)
    line.speaks_with(os.getpid())
    stranger = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        """ s.sendall(b'{"op": "checkpoint", "value": "forged"}\\n'); sys.stdout.buffer.write(s.recv(100))"""
    )
    try:
        command = [sys.executable, "-c", stranger, line.path]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=20, check=False)
        assert b"s3cret" not in done.stdout
        caller = await asyncio.to_thread(Caller, line.path)
        assert json.loads(await asyncio.to_thread(caller.file.readline)) == {"password": "s3cret"}
        caller.close()
    finally:
        await line.close()
    assert delivery.settled == []
