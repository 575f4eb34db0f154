"""What `jobq check` asks of a Storage Queue: whether all it needs is there."""

import time
from collections.abc import AsyncIterator

from jobq.errors import JobqError, QueueNotFound
from jobq.examination import Finding, Verdict
from jobq_azure.common.errors import NoAnswer, certain
from jobq_azure.common.examination import clock
from jobq_azure.storage.account import Account
from jobq_azure.storage.queue_client import StorageQueueClient


async def findings(account: Account, dead: StorageQueueClient, create: str) -> AsyncIterator[Finding]:
    """Look at what a queue needs beside itself; changes nothing.

    Args:
        account: entered.
        dead: to the place of its dead letters.
        create: the command that makes what is missing.
    """
    yield clock(await certain(account.now()), time.time())
    try:
        await dead.peek(1)
    except (JobqError, NoAnswer) as error:
        is_missing = isinstance(error, QueueNotFound)
        advice = f"make it with: {create}" if is_missing else str(error)
        found = "is not there" if is_missing else "cannot be looked at"
        yield Finding(what="the place of dead letters", found=found, verdict=Verdict.DIFFERS, advice=advice)
    else:
        yield Finding(what="the place of dead letters", found="is there")
    if account.has_blobs:
        yield Finding(what="blobs, for large tasks", found="known")
    else:
        advice = "add the BlobEndpoint to the connection string"
        yield Finding(what="blobs, for large tasks", found="not known", verdict=Verdict.NOTED, advice=advice)
