"""`jobq emulator service-bus` in a process of its own: a client of another process, signals, what is missing."""

import json
import signal
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from jobq.testing.service_bus.access import sign
from jobq.testing.service_bus.emulator import ROOT_KEY, ROOT_POLICY
from tests.cli.conftest import Jobq

from .support import SOON, receiver_of, sender_of

if TYPE_CHECKING:
    import subprocess


@pytest.fixture
def jobq(tmp_path: Path) -> Iterator[Jobq]:
    """The command line with a home of its own; what it has started is ended with the test."""
    command = Jobq(tmp_path)
    yield command
    for process in command.running:
        with process:  # closes its pipes, and waits
            process.kill()


def first_line(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_the_sdk_and_rest_until_a_signal(jobq: Jobq, number: signal.Signals) -> None:
    process = jobq.start("emulator", "service-bus", "--queue", "a", "--queue", "b", "--json")
    told: dict[str, Any] = json.loads(first_line(process))
    assert told["queues"] == ["a", "b"]
    token = sign(told["rest_url"], ROOT_POLICY, ROOT_KEY, 4e9)
    async with ClientSession(headers={"Authorization": token}) as session:
        async with session.post(f"{told['rest_url']}/b/messages", data="over REST") as answer:
            assert answer.status == 201
        async with ServiceBusClient.from_connection_string(told["connection_string"]) as client:
            async with sender_of(client, "b") as sender:
                await sender.send_messages(ServiceBusMessage("over AMQP"), timeout=SOON)
            async with receiver_of(client, "b") as receiver:
                got = await receiver.receive_messages(1) + await receiver.receive_messages(1)
                assert [str(message) for message in got] == ["over REST", "over AMQP"]
                # Ended with a receiver that is attached, and a long poll that is open.
                async with session.post(f"{told['rest_url']}/a/messages/head?timeout=0") as answer:
                    assert answer.status == 204
                process.send_signal(number)
                assert process.wait(SOON) == 0
    _, errors = process.communicate()
    assert b"Traceback" not in errors


def test_its_text_is_the_connection_string_and_how_to_end_it(jobq: Jobq) -> None:
    done = jobq("emulator", "service-bus", "--time-limit", "100ms")
    (line,) = done.lines
    assert line.startswith("Endpoint=sb://127.0.0.1:")
    assert line.endswith(";UseDevelopmentEmulator=true")
    assert "queues: demo" in done.err
    assert "Ctrl-C" in done.err
    assert jobq("--quiet", "emulator", "service-bus", "--time-limit", "100ms").err == ""


def test_a_port_that_is_taken_is_told(jobq: Jobq) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--port", "--http-port"):
            done = jobq("emulator", "service-bus", option, port, "--json", code=3)
            assert done.error["error"] == "ConfigurationError"
            assert "in use" in done.error["message"]


def test_options_reach_the_queues(jobq: Jobq) -> None:
    done = jobq("emulator", "service-bus", "--lock-duration", "soon", code=2)
    assert "--lock-duration" in done.err
    assert jobq("emulator", "service-bus", "--max-delivery-count", "0", code=2).out == ""


def test_it_needs_nothing_that_jobq_itself_does_not() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["emulator"] == []  # the name stays: people install it
