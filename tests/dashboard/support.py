"""A service with its dashboard, spoken to as browsers do, and by what is no browser of ours."""

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from jobq.backend import Backend
from jobq.journal.store import journal_of
from jobq.servable import served
from jobq.server import tokens
from jobq.settings import Settings
from jobq.spec import resolve
from tests.fork_server import forked
from tests.service.server import HttpServer

T = TypeVar("T")
_FORM_TOKEN = re.compile(r'name="form" value="([0-9a-f]{64})"')


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def form_token(self) -> str:
        found = _FORM_TOKEN.search(self.text)
        assert found is not None, self.text[:500]
        return found[1]

    def hidden(self, name: str) -> str:
        """Return the value of a field of its last form."""
        return str(re.findall(rf'name="{name}" value="([^"]*)"', self.text)[-1])


@dataclass
class Dashboard:
    """One service with --ui."""

    server: HttpServer
    spec: str
    folder: Path
    more_environment: Mapping[str, str] = field(default_factory=dict)
    _cookies: dict[tuple[str, ...], str] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.server.url

    def inside(self, work: Callable[[Backend], Awaitable[T]], spec: str = "") -> T:
        """Do something with its queue; on a thread of its own, for a browser's test has a loop already."""

        async def connected() -> T:
            async with resolve(spec or self.spec, Settings(home=self.folder)) as backend:
                return await work(backend)

        return self._pool.submit(lambda: asyncio.run(connected())).result(60)

    @property
    def environment(self) -> dict[str, str]:
        """Of commands that use the same place."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
        own = {"JOBQ_HOME": str(self.folder), "JOBQ_ALLOW_SHORT_LEASE": "1", "JOBQ_SCHEDULED_EVENTS": "off"}
        return {**kept, **own, **self.more_environment}

    def jobq(self, *arguments: str) -> str:
        """Run a command on its queue; return what it prints."""
        words = [sys.executable, "-m", "jobq", self.spec, *arguments]
        done: subprocess.CompletedProcess[str] = forked.run(
            words, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def push(self, command: str, *options: str) -> str:
        """Push one command; return its id."""
        return str(json.loads(self.jobq("push", "--json", *options, "-c", command).splitlines()[0])["id"])

    @contextmanager
    def worker(self, *options: str) -> Iterator[None]:
        """A worker, for as long as the context is entered."""
        with (self.folder / "worker.log").open("ab") as log:
            process = forked.Popen[bytes](
                [sys.executable, "-m", "jobq", self.spec, "worker", "--idle-timeout", "1h", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)

    def wait_for(self, task_id: str, state: str) -> None:
        """Return once a task is in a state."""

        async def wait(backend: Backend) -> None:
            while [str(each.state) for each in await journal_of(backend).find([task_id])] != [state]:
                await asyncio.sleep(0.05)

        self.inside(wait)

    def token(self, *scopes: str, queues: tuple[str, ...] = ("*",), name: str = "") -> str:
        """Make a token."""

        async def make(backend: Backend) -> str:
            return (await tokens.create(served(backend), name, scopes, queues))[1]

        return self.inside(make)

    def ask(
        self,
        method: str,
        path: str,
        *,
        cookie: str = "",
        fields: dict[str, Any] | list[tuple[str, str]] | None = None,
        **headers: str | None,
    ) -> Answer:
        """Send a request; a POST as one of our own pages does, but for the headers that are given; None = without."""
        sent: dict[str, str | None] = {"Host": f"127.0.0.1:{self.server.port}"}
        if method == "POST":
            sent |= {"Origin": self.url, "Sec-Fetch-Site": "same-origin"}
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        if cookie:
            sent["Cookie"] = cookie
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            body = None if fields is None else urlencode(fields)
            kept = {name: value for name, value in sent.items() if value is not None}
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in (kept | ({"Content-Length": str(len(body))} if body is not None else {})).items():
                connection.putheader(name, value)
            connection.endheaders(None if body is None else body.encode())
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read().decode("utf-8", "replace"))
        finally:
            connection.close()

    def cookie(self, *scopes: str) -> str:
        """Return the cookie of somebody with these scopes, the same each time: wrong tokens are slowed down."""
        if scopes not in self._cookies:
            self._cookies[scopes] = self.sign_in(self.token(*scopes))
        return self._cookies[scopes]

    def sign_in(self, token: str) -> str:
        """Return the cookie of a new session."""
        answer = self.ask("POST", "/ui/enter", fields={"token": token})
        while answer.status == 429:  # wrong ones from here have used up their rate; this one is known in two seconds
            time.sleep(0.2)
            answer = self.ask("POST", "/ui/enter", fields={"token": token})
        assert answer.status == 303, answer.text
        return answer.headers["set-cookie"].partition(";")[0]
