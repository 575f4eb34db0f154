"""A PostgreSQL server, and lanes to it: one connection each, one piece of work at a time, never waited for too long.

A lane belongs to one purpose, so that a renewal never waits behind a slow push. Work that is handed in runs in the
lane's own task: who waits for it may be cancelled without leaving the connection half way through an answer.

Each piece of work has a time. When it is over the connection is dropped without a word to the server (a black hole
would swallow that too) and the next piece connects anew: what was lost is then *unknown*, never guessed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import asyncpg

from jobq.errors import AccessDenied, BackendUnavailable, JobqError, QueueNotFound
from jobq_postgres import errors, passwords, schema
from jobq_postgres.errors import NoAnswer

T = TypeVar("T")
Work = Callable[[Any], Awaitable[T]]  # what is done with an asyncpg connection
CONNECT_SECONDS: Final = 5.0
FIRST_LOGIN_SECONDS: Final = 1.0  # between a login that was refused and the next; then twice as long each time
LONGEST_LOGIN_SECONDS: Final = 10.0  # so that a lease outlives a password that is put right
_FAULTS_OF_CONNECTING: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, OverflowError)
_log = logging.getLogger(__name__)

# What each session needs, whatever the server, the database or the role has for a default. One statement, so that it
# costs one round trip. A setting that this version of the server has not is passed over.
_SESSION: Final = {
    "default_transaction_isolation": "read committed",  # a claim passes over what another one took meanwhile
    "statement_timeout": "600s",  # lanes give up earlier; this is for a client that has vanished
    "lock_timeout": "3s",
    # A client that vanished, or was stopped, holds no locks for long: none of ours thinks between two statements.
    "idle_in_transaction_session_timeout": "5s",
    "idle_session_timeout": "0",
    "client_connection_check_interval": "5s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "20s",
    # Every statement of ours is served by an index, whatever the statistics of a table that was empty a minute ago say.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
_SET_UP: Final = """
    SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS wanted (name, value)
    WHERE current_setting(name, true) IS NOT NULL
    UNION ALL  -- S1: what is acknowledged is on disk, also where the default is off; remote_apply says more and stays
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') <> 'remote_apply'
"""


class Refusal:
    """A login that was refused, and for how long it is not tried again: many servers lock an account after a few."""

    def __init__(self) -> None:
        self._error: AccessDenied | None = None
        self._until = 0.0  # time.monotonic()
        self._pause = 0.0

    def check(self) -> None:
        """Raise what was said, while it is too early to ask again."""
        if self._error is not None and time.monotonic() < self._until:
            raise AccessDenied(str(self._error))

    def note(self, error: JobqError | None) -> None:
        """Take in how a login ended; None = it succeeded."""
        if not isinstance(error, AccessDenied):
            self._error, self._pause = None, 0.0
            return
        self._pause = min(max(FIRST_LOGIN_SECONDS, 2 * self._pause), LONGEST_LOGIN_SECONDS)
        self._error, self._until = error, time.monotonic() + self._pause


@dataclass(frozen=True, kw_only=True)
class Server:
    """Where the database is and how it is reached.

    Attributes:
        dsn: a connection URL without a password; asyncpg reads PGPASSFILE, PGSSLMODE and the like by itself.
        place: HOST/DATABASE, for messages.
        options: further arguments of `asyncpg.connect`.
        refusal: what all lanes of one handle know of their login.
    """

    dsn: str
    place: str
    options: tuple[tuple[str, Any], ...] = ()
    refusal: Refusal = field(default_factory=Refusal, compare=False)

    async def connect(self, purpose: str, *, checks: bool = True) -> Any:
        """Return a new connection with our settings.

        Args:
            purpose: shown in pg_stat_activity.
            checks: refuse a database without our tables, or with those of another version.

        Raises:
            JobqError: as `errors.misconfigured` and `errors.translate` say; QueueNotFound without our tables.
        """
        connection = await self.open(purpose)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.fetch(_SET_UP, list(_SESSION), list(_SESSION.values()))
                if checks:
                    await self._check(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, Exception) and not isinstance(error, JobqError):
                raise errors.translate(error, self.place) from None
            raise
        return connection

    async def open(self, purpose: str) -> Any:
        """Return a new connection as the server and the role have it; raises as `connect`."""
        passwords.check()
        self.refusal.check()
        try:
            connection = await asyncpg.connect(
                self.dsn,
                timeout=CONNECT_SECONDS,
                server_settings={"application_name": f"jobq {purpose}"},
                max_cached_statement_lifetime=0,
                **dict(self.options),
            )
        except _FAULTS_OF_CONNECTING as error:
            cause = errors.misconfigured(error, self.place) or errors.translate(error, self.place)
            self.refusal.note(cause)
            raise cause from None
        self.refusal.note(None)
        return connection

    async def _check(self, connection: Any) -> None:
        installed = await schema.installed_version(connection)
        if installed == 0:
            raise QueueNotFound(f"{self.place} has no tables of jobq; make them and the queue with: jobq QUEUE create")
        schema.check(installed, self.place)


@dataclass(slots=True, eq=False)
class _Job:
    work: Work[Any]
    seconds: float
    answer: "asyncio.Future[Any]"
    early: bool
    gives_up: bool


class Lane:
    """One connection, opened when it is first needed and again after each loss; one piece of work at a time.

    Args:
        server: where to.
        purpose: what it is for; shown in pg_stat_activity.
        on_connected: called with each new connection, before any work; may listen on it.
        on_lost: called when a connection has gone, on the event loop.
    """

    def __init__(
        self,
        server: Server,
        purpose: str,
        *,
        on_connected: Work[None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._server = server
        self._purpose = purpose
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._connection: Any = None
        self._jobs: list[_Job] = []
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection, as far as is known."""
        return self._connection is not None and not self._connection.is_closed()

    def submit(
        self, work: Work[T], *, seconds: float, early: bool = False, gives_up: bool = False
    ) -> "asyncio.Future[T]":
        """Hand in a piece of work.

        Args:
            work: gets the connection; what it begins it must end, a transaction too.
            seconds: how long it may take, connecting not included.
            early: goes before what waits already.
            gives_up: drop the connection when the future is cancelled, for what should not hold up the next one;
                otherwise the work goes on to its end, unheard.

        Returns:
            A future with the result, or with NoAnswer: it was sent and no one can say; or with a JobqError: it
            definitely took no effect.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._closed:
            answer.set_exception(BackendUnavailable(f"{self._server.place} is closed"))
            return answer
        at = next((n for n, job in enumerate(self._jobs) if not job.early), len(self._jobs)) if early else None
        self._jobs.insert(len(self._jobs) if at is None else at, _Job(work, seconds, answer, early, gives_up))
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name=f"jobq-postgres {self._purpose}")
        return answer

    async def close(self) -> None:
        """Finish what was handed in, and close the connection."""
        while self._running is not None:
            await asyncio.wait({self._running})
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is going anyway; the server notices
                async with asyncio.timeout(2.0):
                    await connection.close()
            connection.terminate()

    async def _run(self) -> None:
        try:
            while self._jobs:
                job = self._jobs.pop(0)
                if job.answer.done():
                    continue  # given up before it was begun
                try:
                    value = await self._do(job)
                except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
                    if not job.answer.done():
                        job.answer.set_exception(error)
                else:
                    if not job.answer.done():
                        job.answer.set_result(value)
        finally:
            self._running = None

    async def _do(self, job: _Job) -> Any:
        connection = await self._connected()
        doing = asyncio.ensure_future(job.work(connection))
        try:
            ends = {doing, job.answer} if job.gives_up else {doing}
            await asyncio.wait(ends, timeout=job.seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._drop(connection)
            doing.cancel()
            raise
        if not doing.done():
            self._drop(connection)
            doing.cancel()
            doing.add_done_callback(_forget)
            raise NoAnswer(f"{self._server.place}: no answer within {job.seconds:.3g} s")
        error = doing.exception()
        if error is None:
            return doing.result()
        raise self._meaning(connection, error) from None

    def _meaning(self, connection: Any, error: BaseException) -> BaseException:
        if isinstance(error, JobqError):
            return error
        if errors.leaves_doubt(error):
            self._drop(connection)
            how = errors.state_of(error) or type(error).__name__
            return NoAnswer(f"{self._server.place}: the connection was lost ({how})")
        if errors.ends_connection(error):
            self._drop(connection)
        return errors.translate(error, self._server.place)

    async def _connected(self) -> Any:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        self._connection = None
        connection = await self._server.connect(self._purpose)
        connection.add_termination_listener(self._terminated)
        if self._on_connected is not None:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._on_connected(connection)
            except BaseException as error:
                connection.terminate()
                if isinstance(error, Exception):
                    raise errors.translate(error, self._server.place) from None
                raise
        self._connection = connection
        return connection

    def _drop(self, connection: Any) -> None:
        connection.terminate()
        if self._connection is connection:
            self._connection = None

    def _terminated(self, connection: Any) -> None:
        if self._connection is connection:
            self._connection = None
        if self._on_lost is not None and not self._closed:
            self._on_lost()


def _forget(late: "asyncio.Future[Any]") -> None:
    if not late.cancelled() and late.exception() is not None:
        _log.debug("a late answer: %r", late.exception())
