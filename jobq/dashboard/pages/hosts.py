"""The machines, and the workers on them: also those that have nothing to do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from jobq.dashboard.place_notes import notes_of
from jobq.dashboard.session import Viewer
from jobq.dashboard.site import PageRoutes, Site, WebPage
from jobq.journal.notes import NoteKind
from jobq.journal.presence import FORGOTTEN_SECONDS, STOPPED, WorkerPresence
from jobq.server.tokens import Scope

PAGES = PageRoutes()
_GONE = ("gone", STOPPED)


@dataclass(frozen=True, kw_only=True)
class WorkerRow:
    """A worker of a queue, as it was when it last told of itself.

    Attributes:
        queue: whose tasks it runs.
        told: what it said.
        age: seconds since that.
        state: as it is now.
    """

    queue: str
    told: WorkerPresence
    age: float
    state: str

    @property
    def is_here(self) -> bool:
        """Whether it works, or waits for work."""
        return self.state not in _GONE

    @property
    def lost(self) -> int:
        """How many leases it lost: those that it told of, and of one that vanished what it held when it last told."""
        return self.told.lost + (self.told.busy if self.state == "gone" else 0)


@dataclass(kw_only=True)
class HostRow:
    """A machine: what its workers told, added up.

    Attributes:
        name: of it.
        workers: of it, those that are there first.
    """

    name: str
    workers: list[WorkerRow] = field(default_factory=list)

    @property
    def here(self) -> list[WorkerRow]:
        """Those that are there."""
        return [each for each in self.workers if each.is_here]

    @property
    def state(self) -> str:
        """What its workers do, in words: `working`, or `2 working, 1 draining`; `gone` where none is there."""
        states = [each.state for each in self.here] or [self.workers[0].state]
        if len(set(states)) == 1:
            return states[0]
        return ", ".join(f"{states.count(each)} {each}" for each in dict.fromkeys(states))

    @property
    def age(self) -> float:
        """Seconds since one of them last told of itself."""
        return min(each.age for each in self.workers)

    @property
    def versions(self) -> str:
        """Of jobq there."""
        return ", ".join(sorted({each.told.version for each in self.here or self.workers}))

    @property
    def lost(self) -> int:
        """How many leases its workers lost."""
        return sum(each.lost for each in self.workers)

    def sum(self, name: str, *, of_here: bool = False) -> int:
        """Return a number that its workers told, added up.

        Args:
            name: of the attribute.
            of_here: whether only those count that are there.
        """
        return sum(int(getattr(each.told, name)) for each in (self.here if of_here else self.workers))


@PAGES.add("/hosts", Scope.VIEW)
@PAGES.add("/q/{queue}/hosts", Scope.VIEW)
async def show(site: Site, viewer: Viewer, request: Request) -> WebPage:
    """Show them, of a queue or of all."""
    name = request.path_params.get("queue", "")
    workers = [
        WorkerRow(queue=queue, told=told, age=note.age, state=told.state_after(note.age))
        for queue, note in await notes_of(site, viewer, NoteKind.WORKER, name)
        if note.age < FORGOTTEN_SECONDS and (told := WorkerPresence.decode(note.value)) is not None
    ]
    return WebPage(
        template="hosts.html",
        title=f"Hosts of {name}" if name else "Hosts",
        queue=name,
        values={"hosts": _by_host(workers), "has_one_queue": bool(name)},
        seconds=5,
        command=site.command(name or "QUEUE", "ps"),
    )


def _by_host(workers: Iterable[WorkerRow]) -> Sequence[HostRow]:
    """Return the hosts, those where somebody is first."""
    hosts: dict[str, HostRow] = {}
    for each in sorted(workers, key=lambda each: (not each.is_here, each.queue, each.told.holder)):
        hosts.setdefault(each.told.host, HostRow(name=each.told.host)).workers.append(each)
    return sorted(hosts.values(), key=lambda host: (not host.here, host.name))
