"""A service in a process of its own, started by its real command."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from tests.fork_server import forked

START_SECONDS: Final = 30.0


class HttpServer:
    """One `jobq serve`.

    Args:
        spec: what it serves.
        folder: for its log, and what else it needs.
        port: 0 = one that is free, which it then keeps over restarts.
        options: more of its command line.
        files: how many it may have open, as long as it does not ask for more; 0 = as many as we.
        is_open: whether it wants no token, as long as none was made.
    """

    def __init__(
        self,
        spec: str,
        folder: Path,
        *options: str,
        port: int = 0,
        files: int = 0,
        is_open: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.spec = spec
        self.port = port
        self.log = folder / f"serve-{id(self)}.log"
        self._options = (*options, "--no-token") if is_open else options
        self._limited = ["prlimit", f"--nofile={files}:4096", "--"] if files else []
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
        self._environment |= {"JOBQ_HOME": str(folder), "JOBQ_ALLOW_SHORT_LEASE": "1", **(env or {})}
        self.process: subprocess.Popen[str] | None = None
        self.token_file: Path | None = None  # of its owner's token, once it runs
        self.settle_token: str | None = None  # for `logged`, where there is no such file and tokens were made

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and return once it listens."""
        with self.log.open("a") as log:
            self.process = forked.Popen[str](
                [
                    *self._limited,
                    *(sys.executable, "-m", "jobq", "serve", self.spec, "--port", str(self.port), "--json"),
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the service does not start:\n{self.log.read_text()[-4000:]}")
        said = json.loads(line)
        self.port = int(said["url"].rpartition(":")[2])
        self.token_file = Path(said["token_file"]) if said["token_file"] else None

    def kill(self) -> None:
        """End it as a power cut does."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as an administrator does; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(how)
        code = process.wait(START_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def logged(self) -> str:
        """Return the log with all that was said before: a thread writes it, perhaps after the answers."""
        if self.process is None:
            return self.log.read_text()
        marker, ends = f"logged-{uuid4().hex}", time.monotonic() + START_SECONDS
        token = self.settle_token if self.token_file is None else self.token_file.read_text()
        self.ask("PUT", f"/api/tasks/{marker}/release", {"receipt": "x"}, token=token)
        while marker not in (found := self.log.read_text()):
            assert time.monotonic() < ends, found[-2000:]
            time.sleep(0.01)
        return "".join(line for line in found.splitlines(keepends=True) if '"logged-' not in line)

    def ask(self, method: str, path: str, body: object = None, *, token: str | None = None) -> tuple[int, Any]:
        """Send a request as any program could; return the status, and the JSON of the answer."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
            error.close()
        return status, json.loads(text)


@contextlib.contextmanager
def running(
    spec: str,
    folder: Path,
    *options: str,
    files: int = 0,
    is_open: bool = True,
    env: Mapping[str, str] | None = None,
) -> Iterator[HttpServer]:
    """A service while the context is entered."""
    server = HttpServer(spec, folder, *options, files=files, is_open=is_open, env=env)
    server.start()
    try:
        yield server
    finally:
        server.kill()
