"""One Azure Table over REST: a look at rows, and writes in transactions; one method a request.

Not by the SDK, which takes a millisecond of the worker's loop for each row of a transaction: a worker of quick tasks
would spend more on its journal than on its tasks. Everything here may be repeated, and is only where
a kept connection was found closed: rows are replaced by themselves.
https://learn.microsoft.com/rest/api/storageservices/table-service-rest-api
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

import aiohttp

from jobq_azure.common.errors import NoAnswer
from jobq_azure.common.http_session import new_session
from jobq_azure.common.storage_requests import StorageAnswer, StorageRequests
from jobq_azure.common.storage_signing import Signing, shared_key_lite
from jobq_azure.table_journal.errors import refusal
from jobq_azure.table_journal.location import TABLE, TablePlace

if TYPE_CHECKING:
    from jobq_azure.common.credentials import Identity

MOST_ROWS: Final = 100  # of one transaction, by the service
PAGE_ROWS: Final = 1000  # of one look, by the service
_CONNECT_SECONDS: Final = 5.0
_SKEW_SECONDS: Final = 2.0  # a date has whole seconds: less is no difference between two clocks
_JSON: Final = "application/json;odata=nometadata"
_ETAGS: Final = "application/json;odata=fullmetadata"
_VERSION: Final = "2019-02-02"
_STATUS: Final = re.compile(rb"^HTTP/1\.1 (\d{3})", re.MULTILINE)
_ETAG: Final = re.compile(rb"^ETag: *(\S.*?)\s*$", re.MULTILINE | re.IGNORECASE)
Row = dict[str, Any]


class Verb(StrEnum):
    """What a transaction does with one row."""

    REPLACE = "replace"  # whether or not it is there
    INSERT = "insert"  # refused when it is there
    MERGE = "merge"  # the values that are given, and no others; refused when it is not there
    DELETE = "delete"  # refused when it is not there


@dataclass(frozen=True, slots=True)
class Write:
    """One row of a transaction.

    Attributes:
        verb: what to do with it.
        row: its key, below the partition.
        values: what it is to hold; empty for a deletion.
        etag: it must be as it was when this was read; empty = however it is.
    """

    verb: Verb
    row: str
    values: Mapping[str, Any]
    etag: str = ""


class TableWire:
    """Requests to one table; an asynchronous context manager.

    Args:
        place: where it is.
        seconds: for which an answer is waited for.
    """

    def __init__(self, place: TablePlace, seconds: float) -> None:
        self.place = place
        self._seconds = seconds
        self._ahead = 0.0
        self._identity: Identity | None = None
        self._session: aiohttp.ClientSession
        self._signing: Signing
        self._requests: StorageRequests

    async def __aenter__(self) -> Self:
        place = self.place
        self._signing = Signing(
            place,
            key_scheme=shared_key_lite,
            version=_VERSION,
            identity=self._signed_in,
            place=str(place),
            seconds=self._seconds,
        )
        self._session = await new_session()
        self._requests = StorageRequests(
            self._session,
            self._signing,
            place=str(place),
            timeout=aiohttp.ClientTimeout(total=self._seconds, sock_connect=_CONNECT_SECONDS),
            repeats_closed=True,
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._signing.aclose()
        if self._identity is not None:
            await self._identity.close()
        await self._session.close()

    def _signed_in(self) -> "Identity":
        from jobq_azure.common.credentials import identity_on  # noqa: PLC0415 - 0.1 s that a key saves

        self._identity = identity_on(self._session, self.place.account)
        return self._identity

    def now(self) -> float:
        """Return wall time by the service's clock, as far as that is known to differ from this machine's."""
        return time.time() + self._ahead

    async def create(self) -> None:
        """Make the table; one that is there is left as it is."""
        answer = await self._request("POST", "/Tables", body=json.dumps({"TableName": TABLE}).encode())
        if answer.status not in {HTTPStatus.NO_CONTENT, HTTPStatus.CREATED, HTTPStatus.CONFLICT}:
            raise refusal(answer.status, answer.code, self.place)

    async def look(
        self,
        partition: str,
        first: str,
        end: str,
        *,
        where: str = "",
        select: str = "",
        limit: int = PAGE_ROWS,
        after: Mapping[str, str] | None = None,
        etags: bool = False,
        behind: str = "",
    ) -> tuple[list[Row], Mapping[str, str] | None]:
        """Return rows of a range in the order of their keys, and what goes on behind them; None = that was all.

        Args:
            partition: whose.
            first: the first key.
            end: the first key behind them.
            where: a condition on them.
            select: the names of what is wanted, separated by commas; empty = all.
            limit: how many at most.
            after: what the look before has returned.
            etags: with the `odata.etag` of each, by which it is written or deleted only as it was read.
            behind: the first partition behind those that are looked at, one after the other; empty = that one alone.
        """
        whose = f"PartitionKey eq '{partition}'"
        if behind:
            whose = f"PartitionKey ge '{partition}' and PartitionKey lt '{behind}'"
        range_ = f"{whose} and RowKey ge '{first}' and RowKey lt '{end}'"
        query = {"$filter": f"{range_} and {where}" if where else range_, "$top": str(min(limit, PAGE_ROWS))}
        if select:
            query["$select"] = f"PartitionKey,RowKey,Timestamp,{select}"
        answer = await self._request("GET", f"/{TABLE}()", query | dict(after or {}), accept=_ETAGS if etags else _JSON)
        if answer.status != HTTPStatus.OK:
            raise refusal(answer.status, answer.code, self.place)
        following = {
            name: value
            for name in ("NextPartitionKey", "NextRowKey")
            if (value := answer.headers.get(f"x-ms-continuation-{name.lower()}"))
        }
        return self._rows(answer), following or None

    async def all(
        self, partition: str, first: str, end: str, *, where: str = "", select: str = "", most: int, etags: bool = False
    ) -> list[Row]:
        """Return the rows of a range, `most` at most; see `look`."""
        found: list[Row] = []
        after: Mapping[str, str] | None = None
        while len(found) < most:
            rows, after = await self.look(
                partition, first, end, where=where, select=select, limit=most - len(found), after=after, etags=etags
            )
            found += rows
            if after is None:
                break
        return found

    async def get(self, partition: str, row: str) -> Row | None:
        """Return one row, with its `odata.etag`; None = it is not there."""
        query = {"$filter": f"PartitionKey eq '{partition}' and RowKey eq '{row}'"}
        answer = await self._request("GET", f"/{TABLE}()", query, accept=_ETAGS)
        if answer.status != HTTPStatus.OK:
            raise refusal(answer.status, answer.code, self.place)
        found = self._rows(answer)
        return found[0] if found else None

    async def write(self, partition: str, writes: Sequence[Write]) -> list[str]:
        """Write rows of one partition, all or none, MOST_ROWS and 4 MiB at most; return the etag of each, or "".

        Raises:
            WriteRefused: one of them was; nothing was written.
            NoAnswer: nobody knows; it may be repeated.
            BackendUnavailable, AccessDenied, ConfigurationError: nothing was written.
        """
        boundary = "batch_jobq"
        answer = await self._request(
            "POST", "/$batch", body=self._transaction(partition, writes), kind=f"multipart/mixed; boundary={boundary}"
        )
        if answer.status != HTTPStatus.ACCEPTED:
            raise refusal(answer.status, answer.code, self.place)
        statuses = [int(found) for found in _STATUS.findall(answer.body)]
        if len(statuses) == len(writes) and all(200 <= status < 300 for status in statuses):  # noqa: PLR2004 - success
            found = (_ETAG.search(part) for part in _STATUS.split(answer.body)[2::2])
            return ["" if each is None else each[1].decode() for each in found]
        failed = next((status for status in statuses if status >= HTTPStatus.BAD_REQUEST), None)
        if failed is None:
            raise NoAnswer(f"{self.place}: the answer cannot be read")
        raise refusal(failed, answer.code, self.place, answer.body)

    def _transaction(self, partition: str, writes: Sequence[Write]) -> bytes:
        parts = [b"--batch_jobq\r\nContent-Type: multipart/mixed; boundary=changeset_jobq\r\n\r\n"]
        for write in writes:
            key = f"(PartitionKey='{quote(partition, safe='')}',RowKey='{quote(write.row, safe='')}')"
            url = f"{self.place.url}/{TABLE}"
            method, target, match = {
                Verb.REPLACE: ("PUT", url + key, write.etag),
                Verb.INSERT: ("POST", url, ""),
                Verb.MERGE: ("MERGE", url + key, write.etag or "*"),
                Verb.DELETE: ("DELETE", url + key, write.etag or "*"),
            }[write.verb]
            head = (
                "--changeset_jobq\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
                f"{method} {target} HTTP/1.1\r\nAccept: {_JSON}\r\nContent-Type: application/json\r\n"
                "DataServiceVersion: 3.0\r\nPrefer: return-no-content\r\n"
            )
            if match:
                head += f"If-Match: {match}\r\n"
            values = {"PartitionKey": partition, "RowKey": write.row, **write.values}
            body = b"" if write.verb is Verb.DELETE else json.dumps(values).encode()
            parts.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n")
        parts.append(b"--changeset_jobq--\r\n--batch_jobq--\r\n")
        return b"".join(parts)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        kind: str = "application/json",
        accept: str = _JSON,
    ) -> StorageAnswer:
        headers = {"Accept": accept, "DataServiceVersion": "3.0"}
        if body:
            headers |= {"Content-Type": kind, "Prefer": "return-no-content"}
        answer = await self._requests.send(method, path, query or {}, headers, body)
        self._set_clock(answer)
        return answer

    def _set_clock(self, answer: StorageAnswer) -> None:
        try:
            ahead = parsedate_to_datetime(answer.headers.get("date", "")).timestamp() + 0.5 - time.time()
        except ValueError:
            return
        self._ahead = ahead if abs(ahead) > _SKEW_SECONDS else 0.0

    def _rows(self, answer: StorageAnswer) -> list[Row]:
        try:
            rows: list[Row] = json.loads(answer.body)["value"]
            if all(isinstance(row["RowKey"], str) for row in rows):
                return rows
        except (ValueError, LookupError, TypeError):
            pass
        raise NoAnswer(f"{self.place}: the answer cannot be read")
