"""Named leases with cursors in a small scope: two programs, one name, and the store's own rules (`jobq.lease.rules`).

What the store makes of a request is not modelled: it is the code that SQLite and the memory backend run. Requests come
late, twice or never, answers late or never; programs crash, give up waiting, and ask again; an operator may revoke.
What must hold in every state:

    S3   tokens rise with each grant
    S4   what a stale token asks for changes nothing
    S9   a saved cursor is never undone, nor changed under its version
    S10  one holder by the store's clock; and who takes itself for the holder, by its own deadline, is it

`RULES` can be left out, and must then be missed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import product
from typing import Final, NamedTuple

from jobq.errors import JobqError
from jobq.lease import rules
from jobq.lease.rules import LeaseRow
from jobq.lease.store import Busy, Grant, Request
from tests.models.search import Table

RULES: Final = {
    "2": "the holder's deadline lies before the lease's end by what its clock may lose (rules.md 1.3 rule 2)",
    "S3": "a name that was released goes on with higher tokens",
    "S4, renew": "a renewal compares the token",
    "S4, save": "a save compares the token",
    "S9": "a save compares the version",
    "S10": "a name that is held is not granted to another",
}
_NAME: Final = "one"


class Message(NamedTuple):
    """A request; what it needs of key, token and version."""

    verb: str
    key: str = ""
    token: int = 0
    version: int = 0


class Client(NamedTuple):
    """One program.

    Attributes:
        key: of its request for the name; "" = it wants nothing.
        token: under which it holds the name; 0 = it does not.
        held, lag: ticks of its clock since the request that its deadline counts from, and ticks that it lost meanwhile.
        version: of the last cursor that was acknowledged to it, or granted.
        asked: the request that it waits for.
        mail: where that is: "lost", "sent", "granted", "done" or "refused".
        age, age_lag: as held and lag, since that request.
    """

    key: str = ""
    token: int = 0
    held: int = 0
    lag: int = 0
    version: int = 0
    asked: Message | None = None
    mail: str = ""
    age: int = 0
    age_lag: int = 0


class Server(NamedTuple):
    """The record of the name, its times counted from now; and the rule that a change of it has broken."""

    row: LeaseRow | None = None
    fault: str = ""


State = tuple[int, ...]  # places of server, what is astray, and the clients in order
_IDLE: Final = Client()


class NamedModel:
    """The protocol without some of its rules.

    Args:
        ttl: ticks.
        drift: ticks that a clock may lose within a lease.
        tokens: grants, at most.
        versions: saves that take effect, at most.
        astray: requests that nobody waits for, at most; more are lost.
        without: the rules that are left out.
    """

    def __init__(
        self,
        *,
        ttl: int = 4,
        drift: int = 1,
        tokens: int = 2,
        versions: int = 2,
        astray: int = 1,
        without: frozenset[str] = frozenset(),
    ) -> None:
        assert without <= RULES.keys()
        self._ttl, self._drift, self._tokens, self._versions, self._astray = ttl, drift, tokens, versions, astray
        self._rules = RULES.keys() - without
        self._hold = ttl - 1 - (drift if "2" in self._rules else 0)
        self._clients, self._servers, self._strays = Table[Client](), Table[Server](), Table[tuple[Message, ...]]()
        self._ticked = cache(self._after_tick)
        self._passed = cache(self._after_time)
        self._served = cache(self._serve)
        self._acted = cache(self._done_by)
        self._answers = cache(self._answered)
        self._late = cache(self._lost_or_late)

    def first(self) -> State:
        """Nobody ever had the name."""
        idle = self._clients.place(_IDLE)
        return self._servers.place(Server()), self._strays.place(()), idle, idle

    def following(self, state: State) -> Iterable[tuple[str, State]]:
        """Return what programs, operator, network and time may do."""
        at, astray, *places = state
        found = [
            ("a tick", (self._passed(at), astray, *sorted(after))) for after in product(*map(self._ticked, places))
        ]
        for number, place in enumerate(places):
            others = places[:number] + places[number + 1 :]
            key = "" if self._clients.all[place].key else self._unused_key(state)
            for label, became, left in self._acted(place, key, astray):
                found.append((label, (at, left, *sorted((*others, became)))))
            for label, served, became, left in self._answers(at, place, astray):
                found.append((label, (served, left, *sorted((*others, became)))))
        for label, served, left in self._late(at, astray):
            found.append((label, (served, left, *places)))
        return found

    def broken(self, state: State) -> str:
        """S3, S4, S9 and S10."""
        row, fault = self._servers.all[state[0]]
        if fault:
            return fault
        for client in (self._clients.all[place] for place in state[2:]):
            if client.token and not (
                client.mail == "granted"
                or (row is not None and row.token == client.token and row.state == rules.HELD and row.expires_at > 0)
            ):
                return f"S10: a program takes itself for the holder under token {client.token}, and is not"
        return ""

    def told(self, state: State) -> str:
        """Return it in words."""
        row, strays = self._servers.all[state[0]].row, self._strays.all[state[1]]
        parts = ["nobody had it"]
        if row is not None:
            left = f" for {row.expires_at:g}" if row.state == rules.HELD else ""
            parts = [f"token {row.token} {row.state}{left}, cursor {row.cursor or 'none'}"]
        for client in (self._clients.all[place] for place in state[2:]):
            if client.token:
                parts.append(f"{client.token} holds, {client.held} of {self._hold}")
            if client.asked is not None:
                parts.append(f"{client.asked.verb} {client.mail}")
        return "; ".join(parts + [f"astray: {each.verb} {each.token or each.key}" for each in strays])

    def _acts(self, client: Client, key: str) -> Iterator[tuple[str, Client, Message | None]]:
        """Yield what a program may do: in words, what it is then, and what it leaves behind."""
        left_behind = client.asked if client.mail == "sent" else None
        if not client.key:
            yield "a program asks", _asking(Client(key=key), Message("acquire", key=key)), None
        elif not _holds(client):
            yield from self._wants(client, left_behind)
        elif client.held >= self._hold:
            yield f"{client.token} stops at its deadline", _IDLE, left_behind
        else:
            yield f"{client.token} crashes", _IDLE, left_behind
            yield from self._uses(client, left_behind)

    def _wants(self, client: Client, left_behind: Message | None) -> Iterator[tuple[str, Client, Message | None]]:
        assert client.asked is not None
        yield "who asked crashes", _IDLE, left_behind
        yield "who asked gives up", _IDLE, Message("withdraw", key=client.key)
        if client.mail == "granted" and client.age < self._hold:  # rule 5
            yield f"{client.token} hears that it holds it", _kept(client), None
        elif client.mail == "refused":
            yield "who asked is refused", _IDLE, None
        elif client.age:
            yield "who asked asks again", _asking(Client(key=client.key), client.asked), left_behind

    def _uses(self, client: Client, left_behind: Message | None) -> Iterator[tuple[str, Client, Message | None]]:
        token, asked, version = client.token, client.asked, client.version
        if asked is None:
            yield f"{token} renews", _asking(client, Message("renew", token=token)), None
            if version < self._versions:
                yield f"{token} saves", _asking(client, Message("save", token=token, version=version + 1)), None
            for verb in ("release", "confirm"):
                yield f"{token} sends its {verb}", _IDLE, Message(verb, token=token)
        elif client.mail == "refused":
            yield f"{token} hears that it is lost", _IDLE, None
        elif client.mail == "done":
            saved = _waiting_no_more(client)._replace(version=asked.version)
            yield f"{token} hears that its {asked.verb} is done", saved if asked.verb == "save" else _kept(client), None
        elif client.age:
            yield f"{token} waits no more for its {asked.verb}", _waiting_no_more(client), left_behind

    def _done_by(self, place: int, key: str, astray: int) -> list[tuple[str, int, int]]:
        """Return what a program may do by itself: in words, what it is then, and what is astray then."""
        strays, found = self._strays.all[astray], []
        for label, became, sent in self._acts(self._clients.all[place], key):
            left = astray
            if sent is not None and len(strays) < self._astray:
                left = self._strays.place(tuple(sorted((*strays, sent))))
            found.append((label, self._clients.place(became), left))
        return found

    def _answered(self, at: int, place: int, astray: int) -> list[tuple[str, int, int, int]]:
        """Return what comes of the request that a program waits for, when it arrives."""
        client, strays = self._clients.all[place], self._strays.all[astray]
        if client.asked is None or client.mail != "sent":
            return []
        label, served, answer, version = self._served(at, client.asked)
        if not answer:
            return []
        row = self._servers.all[served].row
        token = row.token if answer == "granted" and row is not None else client.token
        became = self._clients.place(client._replace(mail=answer, token=token, version=version or client.version))
        found = [(label, served, became, astray)]
        if len(strays) < self._astray:
            twice = self._strays.place(tuple(sorted((*strays, client.asked))))
            found.append((f"{label}, and it comes again later", served, became, twice))
        return found

    def _lost_or_late(self, at: int, astray: int) -> list[tuple[str, int, int]]:
        """Return what becomes of requests that nobody waits for, and of the record when an operator revokes it."""
        strays, found = self._strays.all[astray], []
        for message in dict.fromkeys(strays):
            rest = list(strays)
            rest.remove(message)
            without = self._strays.place(tuple(rest))
            found.append((f"a {message.verb} is lost", at, without))
            label, served, answer, _ = self._served(at, message)
            if answer:
                found.append((f"late: {label}", served, without))
                found.append((f"late: {label}, and it comes again", served, astray))
        row = self._servers.all[at].row
        if row is not None:
            found.append(("an operator revokes it", self._servers.place(Server(rules.revoke(row, 0.0))), astray))
        return found

    def _unused_key(self, state: State) -> str:
        """Return a key that nothing knows: as good as a new one."""
        at, astray, *places = state
        row = self._servers.all[at].row
        used = {self._clients.all[place].key for place in places} | {each.key for each in self._strays.all[astray]}
        used.add(row.key if row is not None else "")
        return next(key for key in "abcdefgh" if key not in used)

    def _serve(self, at: int, message: Message) -> tuple[str, int, str, int]:
        """Return what the store makes of a request: in words, its place, the answer ("" = none yet), and a version."""
        row = self._servers.all[at].row
        label = f"{message.verb} of {message.token or message.key}"
        version = 0
        try:
            if message.verb == "acquire":
                after, version = self._acquired(row, message.key)
            else:
                after = self._changed(row, message)
        except JobqError:
            return f"{label} is refused", at, "refused", 0
        if after is None:
            return "", at, "", 0
        fault = _fault(row, after, message)
        ends = "" if after.state == rules.HELD else after.ends
        after = replace(after, expires_at=max(0.0, after.expires_at), renewals=0, ends=ends)
        answer = "granted" if message.verb == "acquire" else "done"
        return f"{label} takes effect", self._servers.place(Server(after, fault)), answer, version

    def _changed(self, row: LeaseRow | None, message: Message) -> LeaseRow | None:
        """Return the record after a request that names a token or a key; None = there is none."""
        if row is None:
            return None
        verb, token = message.verb, message.token
        cursor = f"{token}.{message.version}"
        if verb == "save" and row.token == token and "S9" not in self._rules:
            rules.save(_NAME, row, token, cursor, row.version + 1, 0.0)
            return replace(row, cursor=cursor, version=message.version)
        fenced = row.token if f"S4, {verb}" in RULES.keys() - self._rules else token
        match verb:
            case "withdraw":
                row = rules.withdraw(row, message.key, 0.0)
            case "renew":
                row = rules.renew(_NAME, row, fenced, self._ttl, 0.0)
            case "save":
                row = rules.save(_NAME, row, fenced, cursor, message.version, 0.0)
            case "release":
                row = rules.release(_NAME, row, token, 0.0)
            case "confirm":
                row, _ = rules.confirm(_NAME, row, token, "", 0.0)
        return row

    def _acquired(self, row: LeaseRow | None, key: str) -> tuple[LeaseRow | None, int]:
        request = Request(name=_NAME, key=key, holder="", ttl=timedelta(seconds=self._ttl))
        now = 0.0 if "S10" in self._rules or row is None or row.key == key else row.expires_at
        after, answer = rules.acquire(row, request, now, 0.0)
        if isinstance(answer, Busy) or after.token > self._tokens:
            return None, 0
        assert isinstance(answer, Grant)
        if "S3" not in self._rules and row is not None and row.state == rules.RELEASED:
            after = replace(after, token=1)
        return after, answer.version

    def _after_time(self, at: int) -> int:
        row, fault = self._servers.all[at]
        if row is None:
            return at
        return self._servers.place(Server(replace(row, expires_at=max(0.0, row.expires_at - 1)), fault))

    def _after_tick(self, place: int) -> tuple[int, ...]:
        client = self._clients.all[place]
        if not client.key:
            return (place,)
        holds = _holds(client)
        if holds and client.held >= self._hold:
            return ()
        asks = client.asked is not None
        after = [
            client._replace(
                held=min(client.held + holds, self._hold), age=min(client.age + 1, self._hold) if asks else 0
            )
        ]
        if max(client.lag, client.age_lag) < self._drift:
            after.append(client._replace(lag=client.lag + holds, age_lag=client.age_lag + asks))
        return tuple(map(self._clients.place, after))


def _fault(before: LeaseRow | None, after: LeaseRow, message: Message) -> str:
    """Return the rule that a change breaks."""
    if before is None:
        return ""
    was_held = before.state == rules.HELD and before.expires_at > 0
    if message.verb == "acquire" and not (message.key == before.key and was_held):
        if was_held or before.state == rules.CONFIRMED:
            return f"S10: {after.token} was granted while {before.token} was held"
        if after.token <= before.token:
            return f"S3: token {after.token} was granted after {before.token}"
    if after.version < before.version or (after.version == before.version and after.cursor != before.cursor):
        return f"S9: cursor {before.cursor} became {after.cursor}"
    if (
        message.verb in {"renew", "save", "confirm"}
        and after != before
        and not (was_held and message.token == before.token)
    ):
        return f"S4: a {message.verb} under the stale token {message.token} took effect"
    return ""


def _holds(client: Client) -> bool:
    return bool(client.token) and client.mail != "granted"


def _asking(client: Client, message: Message) -> Client:
    return client._replace(asked=message, mail="sent", age=0, age_lag=0)


def _waiting_no_more(client: Client) -> Client:
    return client._replace(asked=None, mail="", age=0, age_lag=0)


def _kept(client: Client) -> Client:
    """Return a client whose deadline counts from its request."""
    return _waiting_no_more(client)._replace(held=client.age, lag=client.age_lag)
