"""`python -m tests.emulators.service_bus` in a process of its own: a client of another process, and signals."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.emulators.service_bus.access import sign
from tests.emulators.service_bus.emulator import ROOT_KEY, ROOT_POLICY

from .support import SOON, receiver_of, sender_of

_ROOT = Path(__file__).parents[2]
_COMMAND = (sys.executable, "-m", "tests.emulators.service_bus")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_the_sdk_and_rest_until_a_signal(number: signal.Signals) -> None:
    words = ("--queue", "a", "--queue", "b", "--json")
    with subprocess.Popen((*_COMMAND, *words), cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        told: dict[str, Any] = json.loads(process.stdout.readline())
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
                    process.send_signal(number)  # with a receiver that is attached
                    assert process.wait(SOON) == 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
