"""What views show survives the wire: each kind, with hostile text, and what is no such thing is no answer."""

import json
from typing import Any

import pytest

from jobq.journal import view_wire
from jobq.journal.minutes import EndedAttempts
from jobq.journal.notes import QueueNote
from jobq.journal.records import Attempt, Beat, TaskState
from jobq.journal.task_filter import TaskFilter
from jobq.journal.task_rows import TaskDetail, TaskRow
from jobq.journal.views import Count, DeadGroup, DeadGroups, QueueLine, SearchedTo, ViewPage
from jobq.lease.store import LeaseRecord, LeaseState
from jobq.pausing import Pause
from jobq.task import Budgets, Counters, Usage

_TEXT = "<script>alert(1)</script> '\"> {{7*7}} \u202e \x1b[31m \x7f \x00 \ud800 \U0001f600 </pre>"
_ROW = TaskRow(
    id=_TEXT,
    state=TaskState.RUNNING,
    attempt=3,
    at=1.5,
    created=0.5,
    runs=_TEXT,
    program=_TEXT,
    malformed=_TEXT,
    body_bytes=7,
    host=_TEXT,
    holder=_TEXT,
    leased_at=2.0,
    lease_left=-1.0,
    beat=Beat(at=3.0, started=1.0, progress=0.25, text=_TEXT, cores=1.5, rss_bytes=9, processes=2, output=_TEXT),
    exit=_TEXT,
    outcome=_TEXT,
    reason=_TEXT,
    error=_TEXT,
    batch=_TEXT,
    cancel_requested=True,
)
_DETAIL = TaskDetail(
    row=_ROW,
    attempts=[
        Attempt(
            attempt=1, outcome=_TEXT, then="retry", ended=5.0, usage=Usage(max_rss_bytes=4), value={_TEXT: [1, None]}
        ),
        Attempt(attempt=2, outcome="succeeded", then="done", ended=6.0, started=5.5, waited=0.25, detail=_TEXT),
    ],
    output=_TEXT,
    checkpoint=_TEXT,
    description=_TEXT,
    variables=(_TEXT, "B"),
    cwd=_TEXT,
    timeout=5.0,
    priority=-2,
    budgets=Budgets(retries=1, preemptions=2, crashes=3),
    counters=Counters(failures=1),
    on_exit=("3=fail", _TEXT),
    not_before=9.0,
    params={_TEXT: 1, "b": _TEXT},
    signed_by=("key",),
)
_COUNT = Count(number=10_000, is_exact=False, now=3.0, searched_to=SearchedTo(looked_at=5, at=2.0))
_LINE = QueueLine(
    name="q",
    counts={TaskState.READY: _COUNT},
    oldest_ready_seconds=4.0,
    ended={TaskState.DEAD: Count(number=1)},
    paused=Pause(at=1.0, by=_TEXT, reason=_TEXT),
)
_LEASE = LeaseRecord(
    name="n",
    token=7,
    holder=_TEXT,
    state=LeaseState.EXPIRED,
    remaining=None,
    renewals=None,
    acquired=1.0,
    cursor=_TEXT,
    is_revoked=True,
    confirmation=_TEXT,
    ttl=60.0,
    released=3.0,
)
_GROUPS = DeadGroups(
    groups=[DeadGroup(name="a", facts={"error": _TEXT}, count=3, hosts=2, first=1.0, last=2.0, example=_TEXT)],
    others=4,
    searched_to=SearchedTo(looked_at=9),
)
_VALUES: list[tuple[Any, Any]] = [
    (_ROW, view_wire.row_of),
    (TaskRow(id="a", state=TaskState.READY, attempt=0), view_wire.row_of),
    (_DETAIL, view_wire.detail_of),
    (TaskDetail(row=TaskRow(id="a", state=TaskState.DEAD, attempt=1), attempts=[]), view_wire.detail_of),
    (_COUNT, view_wire.count_of),
    (_LINE, view_wire.line_of),
    (QueueLine(name="q", counts={}, ended={}), view_wire.line_of),
    (_LEASE, view_wire.lease_of),
    (_GROUPS, view_wire.groups_of),
    (QueueNote(_TEXT, _TEXT, 0.5), view_wire.note_of),
    (EndedAttempts.of({"failed": 2}, [1.0], [2.0]), view_wire.ended_of),
    (TaskFilter(states=frozenset({TaskState.DEAD}), text=_TEXT, max_age_seconds=0.0), view_wire.filter_of),
    (TaskFilter(), view_wire.filter_of),
]
_NAMES = [type(value).__name__ for value, _ in _VALUES]


def _sent(value: object) -> Any:
    return json.loads(json.dumps(view_wire.fields_of(value)))


@pytest.mark.parametrize(("value", "read"), _VALUES, ids=_NAMES)
def test_it_is_read_as_it_was(value: Any, read: Any) -> None:
    assert read(_sent(value)) == value


@pytest.mark.parametrize(("value", "read"), _VALUES, ids=_NAMES)
def test_what_a_newer_service_adds_is_left_out(value: Any, read: Any) -> None:
    def added(held: Any) -> Any:
        if isinstance(held, dict):
            return {name: each if name in ("facts", "params", "value") else added(each) for name, each in held.items()}
        return [added(each) for each in held] if isinstance(held, list) else held

    fields = added(_sent(value)) | {"color": "blue"}
    if "counts" in fields:
        fields["counts"]["asleep"] = {"number": 1}
    assert read(fields) == value


def test_a_page_has_its_place() -> None:
    page = ViewPage(rows=[_ROW, _ROW], after=_TEXT, searched_to=SearchedTo(looked_at=7))
    assert view_wire.page_of(_sent(page), view_wire.row_of) == page
    assert view_wire.page_of(_sent(ViewPage(rows=())), view_wire.row_of) == ViewPage(rows=[])


@pytest.mark.parametrize(
    "held",
    [
        {},
        {"rows": 3},
        {"rows": [3]},
        {"rows": [{}]},
        {"rows": [{"id": "a", "state": "asleep", "attempt": 1}]},
        [],
        None,
    ],
)
def test_what_is_no_page_is_not_read(held: Any) -> None:
    with pytest.raises(view_wire.NOT_READ):
        view_wire.page_of(held, view_wire.row_of)


def test_no_value_of_a_variable_is_written() -> None:
    """There is none in what views give; the wire adds none."""
    assert "env" not in json.dumps(_sent(_DETAIL))
