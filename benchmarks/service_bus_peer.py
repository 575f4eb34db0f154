"""Run by the peer's own Python: pushes one command, or works, with ai4s-jobq on the Service Bus emulator.

Its addresses are https and its queue is made by the SDK's admin client: both are put aside here, and nothing else.
"""

import asyncio
import json
import os
import sys
import time
from collections import namedtuple

from ai4s.jobq import JobQ, launch_workers  # type: ignore[import-not-found] # of another environment, as the next two
from ai4s.jobq.backend import servicebus_rest  # type: ignore[import-not-found]
from ai4s.jobq.work import ShellCommandProcessor  # type: ignore[import-not-found]

_Token = namedtuple("_Token", "token expires_on")  # noqa: PYI024 - as azure-core has it


class Credential:
    async def get_token(self, *_scopes: str) -> _Token:
        return _Token(os.environ["PEER_TOKEN"], int(time.time()) + 3600)


async def _nothing(*_: object, **__: object) -> None:
    return


servicebus_rest.ServiceBusRestClient._base_url = property(lambda _: os.environ["PEER_URL"])
servicebus_rest.ServiceBusRestBackend.create = _nothing
servicebus_rest.ServiceBusRestBackend._warn_if_dedup_misconfigured = _nothing


async def main(what: str, queue: str) -> None:
    async with JobQ.from_service_bus(queue, fqns="emulator", credential=Credential()) as jobs:
        if what == "push":
            try:
                told = {"id": (await jobs.push(os.environ["PEER_COMMAND"])).job_id}
            except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
                told = {"error": type(error).__name__}
            print(json.dumps(told))
        else:
            async with ShellCommandProcessor(num_workers=1) as processor:
                await launch_workers(jobs, processor, num_workers=1)


if __name__ == "__main__":  # its pool imports this once more
    asyncio.run(main(sys.argv[1], sys.argv[2]))
