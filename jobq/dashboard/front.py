"""Which application answers: the dashboard for what is below /ui, the service for all else."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from jobq.dashboard.site import ROOT

Application = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
_ROOT_BYTES: Final = ROOT.encode()


def front(dashboard: Application, service: Application | None) -> Application:
    """Return both as one.

    Args:
        dashboard: for ROOT and what is below.
        service: for all else; None = there is nothing else, and / leads to the dashboard.
    """

    async def answer(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path == ROOT or path.startswith(f"{ROOT}/"):
            await dashboard(scope, receive, send)
        elif service is not None:
            await service(scope, receive, send)
        else:
            status, where = (307, [(b"location", _ROOT_BYTES + b"/")]) if path == "/" else (404, [])
            await send(
                {"type": "http.response.start", "status": status, "headers": [*where, (b"content-length", b"0")]}
            )
            await send({"type": "http.response.body", "body": b""})

    return answer
