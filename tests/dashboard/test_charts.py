"""Charts: what is drawn is what was noted, what nobody has noted is a gap, and a point has the time that it says."""

import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from jobq.dashboard.charts import (
    FAILED,
    HEIGHT,
    STEP_WIDTH,
    SUCCEEDED,
    Chart,
    depth_chart,
    ended_chart,
    run_chart,
    start_chart,
    total,
    wait_chart,
)
from jobq.dashboard.series import SPANS, points_of
from jobq.journal.minutes import HOUR, MINUTE, EndedAttempts, QueueDepth, SeriesPoint, start_of
from jobq.journal.notes import NoteKind, time_key
from jobq.journal.observations import observations_of
from jobq.journal.views import views_of
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.task import OutcomeKind

pytestmark = pytest.mark.check


def _point(at: int, outcomes: Mapping[str, int] | None, ready: int | None = None, *, minutes: int = 1) -> SeriesPoint:
    ended = None if outcomes is None else EndedAttempts(outcomes=outcomes, minutes=minutes)
    depth = None if ready is None else QueueDepth(counts={"ready": ready, "running": 1}, oldest_seconds=90.0)
    return SeriesPoint(at=at, ended=ended, depth=depth)


def _bars(chart: Chart, label: str) -> list[tuple[float, float, float]]:
    """Return x, the upper edge and the height of each bar."""
    path = next(line.path for line in chart.lines if line.label == label)
    found = re.findall(r"M([\d.]+) (-?[\d.]+)h6v([\d.]+)h-6z", path)
    assert "".join(f"M{x} {y}h6v{height}h-6z" for x, y, height in found) == path
    return [(float(x), float(y), float(height)) for x, y, height in found]


def test_what_succeeded_goes_up_and_the_others_down_at_one_scale() -> None:
    points = [
        _point(0, {"succeeded": 60, "failed": 20, "crashed": 10}),
        _point(60, None),
        _point(120, {"lock_lost": 30}),
    ]
    chart = ended_chart(points)
    assert (chart.top, chart.bottom, chart.zero) == ("60", "30", 48.0)
    assert _bars(chart, "succeeded") == [(0, 0.0, 48.0)]
    assert _bars(chart, "failed") == [(0, 48.0, 24.0)]
    assert _bars(chart, "lease lost") == [(2 * STEP_WIDTH, 48.0, 24.0)]
    assert [line.last for line in chart.lines] == ["60", "30", "30", "0"], "in all"


def test_one_failure_among_thousands_is_seen_and_all_stays_within_the_drawing() -> None:
    chart = ended_chart([_point(0, {"succeeded": 100_000, "failed": 1, "lock_lost": 1, "preempted": 1})])
    for line in chart.lines:
        ((_, top, height),) = _bars(chart, line.label)
        assert height >= 1.5
        assert top >= 0
        assert top + height <= HEIGHT


@pytest.mark.parametrize("draw", [ended_chart, depth_chart, wait_chart, run_chart, start_chart])
def test_of_what_nobody_noted_nothing_is_claimed(draw: type[Chart]) -> None:
    chart = draw([_point(0, None), _point(60, None)])  # type: ignore[arg-type, call-arg]
    assert chart.top == ""
    assert all(line.path == line.last == "" for line in chart.lines)


def test_a_minute_in_which_nothing_ended_is_no_gap() -> None:
    assert ended_chart([_point(0, {})]).top == "0"


def test_a_line_is_broken_where_nobody_looked() -> None:
    chart = depth_chart([_point(0, None, 10), _point(60, None, 5), _point(120, None), _point(180, None, 0)])
    ready = chart.lines[0]
    low, middle = HEIGHT - 1, HEIGHT - 1 - 5 / 10 * (HEIGHT - 2)
    assert ready.path == f"M0 1.0h8V{middle:.1f}h8M24 {low:.1f}h8"
    assert (chart.top, ready.last) == ("10", "0")


def test_how_long_tasks_waited_for_their_start_is_no_matter_of_how_long_they_ran() -> None:
    ended = EndedAttempts.of({"succeeded": 20}, [1000.0] * 20, [5.0] * 19 + [100.0])
    older = EndedAttempts.of({"succeeded": 20}, [1000.0] * 20)
    chart = start_chart([SeriesPoint(at=at, ended=each, depth=None) for at, each in ((0, ended), (60, older))])
    assert chart.title == "Time to start"
    half, most = chart.lines
    assert half.path.startswith("M0 ")
    assert "M8" not in most.path, "of what nobody noted nothing is drawn"
    assert (half.last, most.last, chart.top) == ("5s", "6s", "6s")
    assert run_chart([SeriesPoint(at=0, ended=ended, depth=None)]).lines[0].last == "20m"


def test_longer_steps_are_told_by_the_minute() -> None:
    points = [_point(0, {"succeeded": 90}, minutes=60)]
    assert ended_chart(points).top == "1.5"
    assert total(points, SUCCEEDED) == 90


async def test_the_points_of_a_queue(tmp_path: Path) -> None:
    """Of the last hour by the minute, of the last month from hours and minutes; each note in the step of its time."""
    now = 1_790_000_000.0
    minute = start_of(now)
    async with resolve(f"sqlite://{tmp_path}/jobs.db/q", Settings(home=tmp_path)) as backend:
        await backend.create()
        notes = observations_of(backend)
        assert notes is not None
        for back in (3, 4, 61, 63, 64):
            told = EndedAttempts(outcomes={OutcomeKind.SUCCEEDED: back})
            await notes.put(NoteKind.ENDED, time_key(minute - back * MINUTE), told.encode(), replaces=False)
        hour = start_of(now, HOUR) - 10 * 24 * HOUR
        told = EndedAttempts(outcomes={OutcomeKind.FAILED: 120}, minutes=60)
        await notes.put(NoteKind.ENDED_OF_HOUR, time_key(hour), told.encode(), replaces=False)
        await notes.put(
            NoteKind.DEPTH, time_key(minute - 3 * MINUTE), "{}", replaces=False
        )  # somebody was about to look
        async with views_of(backend) as views:
            last_hour = await points_of(views, "q", SPANS["1h"], now)
            assert [each.at for each in last_hour] == [minute - back * MINUTE for back in range(62, 2, -1)]
            known = {each.at: each.ended.outcomes for each in last_hour if each.ended is not None}
            assert known == {minute - back * MINUTE: {"succeeded": back} for back in (3, 4, 61)}
            assert all(each.depth is None for each in last_hour)
            for name, span in SPANS.items():
                points = await points_of(views, "q", span, now)
                assert len(points) == span.seconds // span.step, name
                assert points[-1].at <= minute - 3 * MINUTE < points[-1].at + span.step, name
            month = await points_of(views, "q", SPANS["30d"], now)
            assert total(month, SUCCEEDED) == 3 + 4 + 61 + 63 + 64
            ((of_hour,),) = ([each for each in month if each.ended and "failed" in each.ended.outcomes],)
            assert of_hour.rate(FAILED) == 2.0
            assert of_hour.at <= hour < of_hour.at + SPANS["30d"].step


async def test_a_queue_whose_notes_are_more_than_a_page(tmp_path: Path) -> None:
    now = time.time()
    async with resolve(f"sqlite://{tmp_path}/jobs.db/q", Settings(home=tmp_path)) as backend:
        await backend.create()
        notes = observations_of(backend)
        assert notes is not None
        one = EndedAttempts(outcomes={OutcomeKind.SUCCEEDED: 1}).encode()
        for back in range(3, 2_603):
            await notes.put(NoteKind.ENDED, time_key(start_of(now) - back * MINUTE), one, replaces=False)
        async with views_of(backend) as views:
            assert total(await points_of(views, "q", SPANS["7d"], now), SUCCEEDED) == 2_600
