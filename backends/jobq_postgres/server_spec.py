"""From a spec to the server and the database that it names."""

from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from jobq.errors import InvalidSpec
from jobq.spec import QueueSpec
from jobq_postgres.lane import Server

_LAST_PORT: Final = 65535


def server_of(spec: QueueSpec) -> Server:
    """Return the server and database of a spec.

    Raises:
        InvalidSpec: it names no database, a port that is none, or holds a password.
    """
    dsn = f"postgresql://{spec.location}"
    parts = urlsplit(dsn)
    database = unquote(parts.path.strip("/"))
    if not database or "/" in database:
        raise InvalidSpec(
            f"this spec names no database; write {spec.scheme}://USER@HOST/DATABASE/{spec.queue}, with options such as"
            f" ?sslmode=require after the database"
        )
    given = parse_qs(parts.query, keep_blank_values=True)
    if {"password", "sslpassword"} & given.keys() or parts.password is not None:
        raise InvalidSpec(
            "a password does not belong into a queue spec: it shows in `ps` and in logs; put it into a file named by"
            " PGPASSFILE (~/.pgpass), or into PGPASSWORD"
        )
    _, _, hosts = parts.netloc.rpartition("@")
    for port in (*(_port_of(host) for host in hosts.split(",")), *",".join(given.get("port", [])).split(",")):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _LAST_PORT):
            raise InvalidSpec(f"{port!a} is no port: it is a number from 1 to 65535; PostgreSQL's own is 5432")
    options: dict[str, Any] = {}
    if "," in hosts and "target_session_attrs" not in given:
        options["target_session_attrs"] = "read-write"  # of several, the one that takes writes
    place = f"{unquote(hosts) or 'the local server'}/{database}"
    return Server(dsn=dsn, place=place, options=tuple(options.items()))


def _port_of(host: str) -> str:
    """Return what stands behind HOST: or [HOST]: (the brackets of IPv6)."""
    return unquote(host.rpartition("]")[2].partition(":")[2])
