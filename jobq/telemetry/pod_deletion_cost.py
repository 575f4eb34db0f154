"""The worth of a worker's pod: Kubernetes removes the cheapest pod of a Deployment first when it scales in.

The worker patches its own pod's annotation `controller.kubernetes.io/pod-deletion-cost` with the number of tasks that
it runs, through the service account of the pod, which needs the right to patch pods (deploy/kubernetes). A hint, no
promise: what is removed all the same drains by SIGTERM, and its tasks come back.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobq.errors import ConfigurationError
from jobq.events import Event
from jobq.telemetry.worker_state import WorkerState

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
_PATCH_TYPE: Final = "application/merge-patch+json"
_ANSWER_SECONDS: Final = 10.0
# The documentation of the annotation warns of frequent changes, which load the API server.
PAUSE_SECONDS: Final = 15.0


class PodCost:
    """Keeps the annotation up to date; a failure is logged once and harms no task.

    Args:
        state: of the worker.
        environment: names the API server and the pod.
        account: the folder of the service account.
        pause: seconds between two patches.

    Raises:
        ConfigurationError: this is no pod, or it has no service account.
    """

    def __init__(
        self,
        state: WorkerState,
        environment: Mapping[str, str] | None = None,
        account: Path = _ACCOUNT,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        environment = os.environ if environment is None else environment
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if not host or not (account / "token").is_file():
            raise ConfigurationError(
                "JOBQ_POD_DELETION_COST works in a pod of Kubernetes with a mounted service account; there is none here"
            )
        address = f"[{host}]" if ":" in host else host
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        namespace = (account / "namespace").read_text().strip()
        self._url = f"https://{address}:{port}/api/v1/namespaces/{namespace}/pods/{environment.get('HOSTNAME', '')}"
        self._account = account
        self._state = state
        self._pause = pause
        self._changed = asyncio.Event()
        self._written: int | None = None
        self._failed = False

    def on_event(self, event: Event) -> None:
        """Take notice that the worth may have changed."""
        if event.name.startswith("task."):
            self._changed.set()

    async def run(self) -> None:
        """Patch after changes until cancelled."""
        import aiohttp  # noqa: PLC0415 - most workers are no pods

        trust = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
            while True:
                self._changed.clear()
                if self._state.busy != self._written:
                    await self._patch(session, self._state.busy)
                await asyncio.sleep(self._pause)
                await self._changed.wait()

    async def _patch(self, session: "aiohttp.ClientSession", busy: int) -> None:
        import aiohttp  # noqa: PLC0415 - as above

        try:
            token = (self._account / "token").read_text().strip()  # rotates, so it is read each time
            headers = {"Authorization": f"Bearer {token}", "Content-Type": _PATCH_TYPE}
            body = {"metadata": {"annotations": {_ANNOTATION: str(busy)}}}
            async with session.patch(self._url, json=body, headers=headers, allow_redirects=False) as answer:
                if answer.status != 200:  # noqa: PLR2004 - OK
                    text = (await answer.content.read(300)).decode(errors="replace")
                    self._log_failure(f"{answer.status} {text}")
                    return
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._log_failure(repr(error))
        else:
            self._written, self._failed = busy, False

    def _log_failure(self, reason: str) -> None:
        self._changed.set()  # the next pause ends with another try
        if not self._failed:
            _log.warning("cannot patch the deletion cost of this pod, so scaling in may choose it: %s", reason)
        self._failed = True
