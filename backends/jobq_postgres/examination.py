"""What `jobq check` asks of a PostgreSQL server: whether what it acknowledges is kept, and whose clock is right."""

import time
from collections.abc import AsyncIterator
from typing import Final

from jobq.examination import Finding, Verdict
from jobq_postgres.lane import Server

_GRAIN_SECONDS: Final = 1.0
_LOOK: Final = """
    SELECT current_setting('server_version') AS version, current_setting('fsync') AS fsync,
        current_setting('full_page_writes') AS pages, pg_is_in_recovery() AS follows,
        extract(epoch FROM clock_timestamp())::float8 AS now
"""


async def findings(server: Server) -> AsyncIterator[Finding]:
    """Look at the server; changes nothing.

    Raises:
        JobqError: it cannot be reached.
    """
    connection = await server.connect("check", checks=False)
    try:
        found = await connection.fetchrow(_LOOK)
    finally:
        connection.terminate()
    yield Finding(what="version of PostgreSQL", found=found["version"], verdict=Verdict.NOTED)
    for name, value in (("fsync", found["fsync"]), ("full_page_writes", found["pages"])):
        is_on = value == "on"
        advice = "" if is_on else f"set {name} = on: a crash of its machine may lose what it acknowledged (S1)"
        yield Finding(what=name, found=value, verdict=Verdict.OK if is_on else Verdict.DIFFERS, advice=advice)
    follows = Finding(
        what="the server takes writes",
        found="no, it follows another",
        verdict=Verdict.DIFFERS,
        advice="name the one that it follows",
    )
    yield follows if found["follows"] else Finding(what="the server takes writes", found="yes")
    ahead = time.time() - found["now"]
    if abs(ahead) <= _GRAIN_SECONDS:
        yield Finding(what="this machine's clock", found="as the server's")
    else:
        side = "ahead of" if ahead > 0 else "behind"
        text = f"{abs(ahead):.0f} s {side} the server's, which alone counts for leases"
        yield Finding(what="this machine's clock", found=text, verdict=Verdict.NOTED)
