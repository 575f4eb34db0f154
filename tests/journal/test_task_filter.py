"""What a store may pass over must be what no condition takes: else a task is there and not found."""

import json
from datetime import timedelta
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobq.errors import ConfigurationError
from jobq.journal.error_grouping import error_of
from jobq.journal.records import Attempt, TaskRecord, TaskState
from jobq.journal.task_filter import Needles, TaskFilter
from jobq.journal.task_rows import row_of
from jobq.journal.task_search import FoundTask, TaskOrder, TaskSearch, Walked
from jobq.task import Task

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
_WORDS = st.lists(st.text("ab-_.=: /'\"\\<>*?[]é\n7", min_size=1, max_size=8), min_size=1, max_size=4)


def _pattern(text: str, cut: int, *, is_open: bool) -> str:
    """Return a pattern that takes a text: some of it, with each of its own wildcards quoted."""
    part = "".join(f"[{each}]" if each in "*?[" else each for each in text[cut % (len(text) + 1) :])
    return f"*{part}*" if is_open else f"*{part}"


def _of(state: TaskState, **fields: object) -> TaskRecord:
    return TaskRecord(id="some.task", state=state, attempt=1, at=1.0, **fields)  # type: ignore[arg-type] # as given


@given(pattern=st.text("ab[]!*?-", max_size=8), text=st.text("ab[]!-", max_size=6))
@settings(max_examples=2000, deadline=None)
@example(pattern="[]a]b", text="]b")
@example(pattern="[!]a]b", text="bb")
def test_a_needle_is_in_all_that_its_pattern_takes(pattern: str, text: str) -> None:
    """Sets are read as fnmatch reads them."""
    if fnmatchcase(text, pattern):
        needles = Needles.of(TaskFilter(host=pattern), is_leased=True, is_dead=False, is_ended=False)
        assert needles.holder in text


@settings(deadline=None)  # a machine may be busy
@given(words=_WORDS, cut=st.integers(0, 40), is_open=st.booleans(), is_signed=st.booleans(), is_ascii=st.booleans())
def test_what_runs_has_its_needle_in_its_body(
    words: list[str], cut: int, is_open: bool, is_signed: bool, is_ascii: bool
) -> None:
    """However the words are quoted, and the body is written: escaped, as ASCII, or within another text."""
    body = Task.new(argv=words).encode()
    text = row_of(_of(TaskState.READY, body=body)).runs
    if is_ascii:
        body = json.dumps(json.loads(body)).encode()
    if is_signed:
        body = json.dumps({"version": 3, "work": body.decode()}).encode()
    wanted = TaskFilter(text=_pattern(text, cut, is_open=is_open))
    needles = Needles.of(wanted, is_leased=False, is_dead=False, is_ended=False)
    assert needles.body.encode() in body
    assert needles.records == ()


@settings(deadline=None)  # a machine may be busy
@given(host=_TEXT, program=_TEXT, code=st.integers(0, 255), is_signal=st.booleans(), cut=st.integers(0, 40))
def test_how_it_ended_has_its_needles_in_its_record(
    host: str, program: str, code: int, is_signal: bool, cut: int
) -> None:
    ended = {"signal": code} if is_signal else {"exit_code": code}
    last = Attempt(attempt=1, outcome="failed", then="done", ended=1.0, host=host, program=program, **ended)  # type: ignore[arg-type] # as above
    row = row_of(_of(TaskState.SUCCEEDED, last=last))
    wanted = TaskFilter(
        exit=f"signal {code}" if is_signal else str(code),
        host=_pattern(host, cut, is_open=True),
        text=_pattern(program, cut, is_open=True),
    )
    assert wanted.takes(row, 2.0)
    needles = Needles.of(wanted, is_leased=False, is_dead=False, is_ended=True)
    assert all(needle in last.encode() for needle in needles.records)
    assert len(needles.records) >= 1
    assert needles.body == ""


@settings(deadline=None)  # a machine may be busy
@given(words=_TEXT, code=st.integers(0, 255), is_signal=st.booleans(), cut=st.integers(0, 40))
def test_why_it_is_dead_has_its_needles_in_its_description(words: str, code: int, is_signal: bool, cut: int) -> None:
    """Folded as it is: what stands for numbers, ids and paths is no part of a needle."""
    how = f"signal {code}" if is_signal else f"exit code {code}"
    description = f"failed: {how}\nlast output:\n{words} -7.5e3 /a/b 0x1f"
    row = row_of(_of(TaskState.DEAD, description=description, reason="failures"))
    assert row.exit == (f"signal {code}" if is_signal else str(code))
    wanted = TaskFilter(exit=row.exit, error=_pattern(error_of(description), cut, is_open=True))
    assert wanted.takes(row, 2.0)
    needles = Needles.of(wanted, is_leased=False, is_dead=True, is_ended=False)
    assert all(needle in description for needle in needles.descriptions)
    assert needles.records == ()


def test_what_runs_now_is_found_by_its_holder_alone() -> None:
    row = row_of(_of(TaskState.RUNNING, holder="node-7:4121", lease_left=5.0))
    wanted = TaskFilter(host="node-*")
    assert wanted.takes(row, 2.0)
    needles = Needles.of(wanted, is_leased=True, is_dead=False, is_ended=False)
    assert (needles.holder, needles.records) == ("node-", ())
    assert not TaskFilter(exit="*?").takes(row, 2.0), "how an earlier attempt ended is not how this one does"


def test_a_search_ends_at_its_most_and_says_where_to_go_on() -> None:
    """Twenty thousand that have ended: their records are looked up one by one."""
    search = TaskSearch(TaskFilter(exit="7"), "", 10, 5.0, timedelta(seconds=60))
    looked = 0
    while (step := search.step()) is not None:
        if step.order is not TaskOrder.ENDED:
            search.take(step, Walked())
            continue
        looked += step.look
        search.take(step, Walked(looked_at=step.look, key=(str(looked),), at=float(looked)))
    page = search.page()
    assert (looked, page.rows) == (20_000, [])
    assert page.searched_to is not None
    assert (page.searched_to.looked_at, page.searched_to.at) == (20_000, 20_000.0)
    assert page.after is not None
    step = TaskSearch(TaskFilter(exit="7"), page.after, 10, 5.0, timedelta(seconds=60)).step()
    assert step is not None
    assert (step.order, step.key) == (TaskOrder.ENDED, ("20000",))


def test_a_page_that_is_full_goes_on_behind_its_last_row() -> None:
    """What was found beyond it shows that there is more, and is found again."""
    search = TaskSearch(TaskFilter(), "", 2, 5.0, timedelta(seconds=60))
    step = search.step()
    assert step is not None
    assert (step.order, step.want) == (TaskOrder.EXPIRED, 3)
    found = [FoundTask((str(n),), _of(TaskState.EXPIRED, lease_left=-1.0), 0) for n in range(3)]
    search.take(step, Walked(tasks=found, looked_at=3, key=("2",)))
    assert search.step() is None
    page = search.page()
    assert (len(page.rows), page.after, page.searched_to) == (2, 'expired:["1"]', None)


@pytest.mark.parametrize(
    "after", ["expired", "expired:", 'dead:["1"]', 'expired:["\\u0000"]', 'expired:["' + "9" * 501 + '"]']
)
def test_what_is_no_place_is_refused(after: str) -> None:
    with pytest.raises(ConfigurationError, match="no place"):
        TaskSearch(TaskFilter(states=frozenset({TaskState.EXPIRED})), after, 2, 5.0, timedelta(seconds=60))
