"""What a token permits, for who has it: a client shows what it can do, and asks for nothing else."""

from typing import Final

from jobq.server import answers
from jobq.server.endpoint import Endpoints, Reply
from jobq.server.request import RequestCall
from jobq.server.tokens import ALL_QUEUES, Scope

ENDPOINTS: Final = Endpoints("/api")


@ENDPOINTS.add("GET", "/token", None, answers={200: answers.TokenShown}, has_queue=False)
async def show(call: RequestCall) -> Reply:
    """Say what the token of this request permits; where none is needed, that is everything."""
    record = call.token
    if record is None:
        return 200, {"id": call.caller, "name": "", "scopes": [str(each) for each in Scope], "queues": [ALL_QUEUES]}
    fields = {"id": record.id, "name": record.name}
    return 200, fields | {"scopes": list(record.scopes), "queues": list(record.queues)}
