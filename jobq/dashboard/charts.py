"""Charts as SVG paths: the service draws them, so they are there without scripts. A step nobody has noted is a gap."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from jobq.dashboard import text
from jobq.journal.minutes import EndedAttempts, SeriesPoint
from jobq.journal.records import TaskState
from jobq.task import OutcomeKind

STEP_WIDTH: Final = 8  # of a point
HEIGHT: Final = 72
SUCCEEDED: Final = (OutcomeKind.SUCCEEDED,)
FAILED: Final = (OutcomeKind.FAILED, OutcomeKind.TIMED_OUT, OutcomeKind.CRASHED)
LOST: Final = (OutcomeKind.LOCK_LOST,)
PREEMPTED: Final = (OutcomeKind.PREEMPTED,)
_GAP: Final = 2  # between two bars
_LEAST_HEIGHT: Final = 1.5  # of a bar: one that failed among thousands is seen
_LEAST_DOWN: Final = 8.0  # for what is drawn downward
Value = Callable[[SeriesPoint], float | None]


class ChartLine(NamedTuple):
    """What is drawn in one colour.

    Attributes:
        kind: names the colour and the dash.
        label: says what it is.
        path: of SVG.
        last: the value of the last step that is known, or of bars their sum, written; "" = none is.
    """

    kind: str
    label: str
    path: str
    last: str


class Chart(NamedTuple):
    """A chart.

    Attributes:
        id: of it, within the page.
        title: what it shows, with the unit.
        lines: of it.
        top: the highest value, written; "" = nothing is known.
        bottom: likewise of what is drawn downward; "" = nothing is.
        zero: where the zero line is, from above.
        width: of the drawing, as HEIGHT is the height; both in the units of the paths.
        is_bars: whether these are bars, and no lines.
    """

    id: str
    title: str
    lines: Sequence[ChartLine]
    top: str
    bottom: str
    zero: float
    width: int
    is_bars: bool


def ended_chart(points: Sequence[SeriesPoint]) -> Chart:
    """Return the ends of attempts in a minute: those that succeeded upward, the others below them downward."""
    sums = {"succeeded": SUCCEEDED, "failed": FAILED, "lease lost": LOST, "preempted": PREEMPTED}
    rates = {label: [point.rate(outcomes) for point in points] for label, outcomes in sums.items()}
    up = [("good", "succeeded", rates["succeeded"])]
    down = [
        (kind, label, rates[label])
        for kind, label in (("bad", "failed"), ("lost", "lease lost"), ("warn", "preempted"))
    ]
    most_up, most_down = _highest(up), _highest(down)
    zero = 0.0 if not most_up and most_down else float(HEIGHT - (_LEAST_DOWN if most_down else 0.0))
    if most_up and most_down:
        zero = min(zero, HEIGHT * most_up / (most_up + most_down))
    scale = zero / most_up if most_up else HEIGHT / (most_down or 1.0)
    lines = []
    for sign, stack in ((-1.0, up), (1.0, down)):
        below = [0.0] * len(points)
        for kind, label, values in stack:
            path = []
            for at, value in enumerate(values):
                if value:
                    height = max(_LEAST_HEIGHT, value * scale)
                    top = zero + sign * below[at] - (height if sign < 0 else 0.0)
                    path.append(f"M{at * STEP_WIDTH} {top:.1f}h{STEP_WIDTH - _GAP}v{height:.1f}h{_GAP - STEP_WIDTH}z")
                    below[at] += height
            in_all = f"{total(points, sums[label]):,}" if _is_known(points) else ""
            lines.append(ChartLine(kind, label, "".join(path), in_all))
    return Chart(
        id="ended",
        title="Ended per minute",
        lines=lines,
        top=_number(most_up) if _is_known(points) else "",
        bottom=_number(most_down) if most_down else "",
        zero=round(zero, 1),
        width=len(points) * STEP_WIDTH,
        is_bars=True,
    )


def depth_chart(points: Sequence[SeriesPoint]) -> Chart:
    """Return how many tasks were ready and how many ran."""
    return _line_chart(
        "depth",
        "Waiting and running",
        points,
        (("wait", "ready", _depth_of(TaskState.READY)), ("accent", "running", _depth_of(TaskState.RUNNING))),
        _number,
    )


def wait_chart(points: Sequence[SeriesPoint]) -> Chart:
    """Return for how long the oldest ready task had waited."""

    def oldest(point: SeriesPoint) -> float | None:
        return None if point.depth is None else (point.depth.oldest_seconds or 0.0)

    return _line_chart("oldest", "The oldest waits", points, (("wait", "oldest ready", oldest),), text.coarse)


def run_chart(points: Sequence[SeriesPoint]) -> Chart:
    """Return for how long attempts ran: half of them at most, and nearly all."""
    return _spread_chart("runs", "Attempts run", points, EndedAttempts.ran_seconds)


def start_chart(points: Sequence[SeriesPoint]) -> Chart:
    """Return how long tasks had waited for their first start, likewise."""
    return _spread_chart("starts", "Time to start", points, EndedAttempts.waited_seconds)


def total(points: Iterable[SeriesPoint], outcomes: Iterable[str]) -> int:
    """Return how many attempts ended so in all steps that are known."""
    wanted = tuple(outcomes)
    return sum(point.ended.outcomes.get(each, 0) for point in points if point.ended is not None for each in wanted)


def _spread_chart(
    id_: str, title: str, points: Sequence[SeriesPoint], seconds: Callable[[EndedAttempts, float], float | None]
) -> Chart:
    def of(share: float) -> Value:
        return lambda point: None if point.ended is None else seconds(point.ended, share)

    lines = ("accent", "half at most (p50)", of(0.5)), ("wait", "19 of 20 at most (p95)", of(0.95))
    return _line_chart(id_, title, points, lines, text.coarse)


def _line_chart(
    id_: str,
    title: str,
    points: Sequence[SeriesPoint],
    wanted: Sequence[tuple[str, str, Value]],
    written: Callable[[float], str],
) -> Chart:
    values = [(kind, label, [value(point) for point in points]) for kind, label, value in wanted]
    most = max((each for *_, known in values for each in known if each is not None), default=None)
    lines = [ChartLine(kind, label, _drawn(known, most or 1.0), _last(known, written)) for kind, label, known in values]
    top = "" if most is None else written(most)
    width = len(points) * STEP_WIDTH
    return Chart(id=id_, title=title, lines=lines, top=top, bottom="", zero=HEIGHT, width=width, is_bars=False)


def _drawn(values: Sequence[float | None], most: float) -> str:
    """Return the path of a line of steps, each as wide as its time, which ends where nothing is known."""
    path = ""
    is_drawing = False
    for at, value in enumerate(values):
        if value is None:
            is_drawing = False
            continue
        y = f"{HEIGHT - 1 - value / most * (HEIGHT - 2):.1f}"
        path += f"V{y}h{STEP_WIDTH}" if is_drawing else f"M{at * STEP_WIDTH} {y}h{STEP_WIDTH}"
        is_drawing = True
    return path


def _highest(stack: Sequence[tuple[str, str, Sequence[float | None]]]) -> float:
    return max((sum(value or 0.0 for value in step) for step in zip(*(known for *_, known in stack), strict=True)),
               default=0.0)  # fmt: skip


def _is_known(points: Sequence[SeriesPoint]) -> bool:
    return any(point.ended is not None for point in points)


def _last(values: Sequence[float | None], written: Callable[[float], str]) -> str:
    return next((written(value) for value in reversed(values) if value is not None), "")


def _number(value: float) -> str:
    """Return a number with the digits that matter: `0.04`, `1.5`, `1,204`."""
    if value >= 10 or value == round(value):  # noqa: PLR2004 - two digits
        return f"{round(value):,}"
    return f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}"


def _depth_of(state: TaskState) -> Value:
    return lambda point: None if point.depth is None else point.depth.counts.get(state)
