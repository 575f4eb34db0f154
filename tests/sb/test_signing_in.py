"""Who cannot sign in, or connect, hears why, whatever the command: no word of the service on rights was ever heard."""

from pathlib import Path
from typing import Final

import pytest

from jobq.errors import BackendUnavailable
from jobq_azure.service_bus.backend import ServiceBusBackend
from jobq_azure.service_bus.namespace import Namespace, place_of
from jobq_azure.service_bus.options import Options
from tests.azure.faults.test_signing_in import identity_service
from tests.emulators.service_bus.description import Description
from tests.emulators.service_bus.emulator import Emulator
from tests.sb.stage import QUEUE, Stage

_SPEC: Final = "sb://ns-of-mine/q"
_BY_ENVIRONMENT: Final = {"JOBQ_CONNECTION_STRING": "", "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
_GIVEN: Final = {
    "AZURE_TENANT_ID": "11111111-1111-1111-1111-111111111111",
    "AZURE_CLIENT_ID": "22222222-2222-2222-2222-222222222222",
    "AZURE_CLIENT_SECRET": "canary",
}


@pytest.mark.parametrize("command", ["size", "peek", "dead list", "push -c true"])
async def test_there_is_no_credential(stage: Stage, command: str) -> None:
    """`size` showed question marks, and ended with 0; `peek` told of an answer that was lost."""
    asked = await stage.run(*command.split(), spec=_SPEC, **_BY_ENVIRONMENT)
    assert (asked.code, asked.out) == (3, ""), asked.err
    assert "no credential of Azure is at hand: run `az login`" in asked.err


async def test_the_identity_service_refuses(stage: Stage, tmp_path: Path) -> None:
    async with identity_service(tmp_path, 401, "AADSTS7000215: Invalid client secret provided.") as service:
        asked = await stage.run("size", spec=_SPEC, **_BY_ENVIRONMENT, **_GIVEN, **service)
    assert (asked.code, asked.out) == (3, ""), asked.err
    assert "the identity service refuses to sign in: AADSTS7000215" in asked.err


@pytest.mark.parametrize("spec", [_SPEC, "sb://emulator/none"])
async def test_a_look_goes_to_its_end(stage: Stage, spec: str) -> None:
    """It said that tasks can be counted, and ended in the middle."""
    looked = await stage.run("check", "--look", spec=spec, **(_BY_ENVIRONMENT if spec == _SPEC else {}))
    assert looked.code == 1, looked.err
    assert "tasks can be counted: yes" not in looked.out
    assert "differs  the rest can be looked at: no" in looked.out
    why = "no credential of Azure is at hand" if spec == _SPEC else "there is no queue sb://emulator/none; make it"
    assert why in looked.out
    assert "things looked at" in looked.err


async def test_nobody_answers_over_amqp() -> None:
    async with Emulator([Description(QUEUE)]) as emulator:
        place = place_of("emulator", QUEUE, emulator.connection_string, "")
    async with ServiceBusBackend(Namespace(place), Options()) as backend:
        with pytest.raises(BackendUnavailable, match=r"port 5671 open.*JOBQ_SERVICE_BUS_WEBSOCKET=1"):
            await backend.peek(1)
