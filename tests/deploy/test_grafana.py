"""The dashboard and the alert rules: PromQL that a parser takes, over metrics that workers show."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from jobq.backend import QueueStats
from jobq.events import Events
from jobq.telemetry.metrics import QueueMetrics, WorkerMetrics, exposition
from jobq.telemetry.queue_snapshot import QueueSnapshot
from jobq.telemetry.worker_state import ENDS, WorkerState
from tests.telemetry.scraping import figures

from .files import DEPLOY

pytestmark = pytest.mark.check

_METRIC = re.compile(r"\bjobq_[a-z_]+")


def _dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
    return found


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "grafana/alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


EXPRESSIONS = [target["expr"] for panel in _dashboard()["panels"] for target in panel["targets"]]
EXPRESSIONS += [rule["expr"] for rule in _rules()]


def _shown() -> dict[str, dict[str, set[str]]]:
    """Return the metrics of a worker to which everything has happened: each with its labels and their values."""
    state = WorkerState()
    worker = WorkerMetrics("q", "sqlite", state)
    events = Events(state.on_event, worker.on_event)
    events.emit("worker.started", slots=1)
    events.emit("worker.receive_failed")
    events.emit("preemption.notice", type="Preempt")
    for name in (
        "task.started",
        *ENDS,
        "task.completed",
        "task.retry_scheduled",
        "task.dead_lettered",
        "task.not_settled",
    ):
        events.emit(name, task_id="t", duration_s=1.0)
    events.emit("task.lease_renewed", task_id="t", result="extended")
    events.emit("task.settlement_unknown", task_id="t")
    queue = QueueMetrics("q", "sqlite", QueueSnapshot(QueueStats(visible=1, leased=1, scheduled=1, dead=1), 1.0, {}))
    found: dict[str, dict[str, set[str]]] = {}
    for name, labels in figures(exposition(worker, queue).decode()):
        for label, value in labels:
            found.setdefault(name, {}).setdefault(label, set()).add(value)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_is_promql_over_metrics_that_exist(expression: str) -> None:
    shown = _shown()
    promql_parser.parse(expression.replace("$__rate_interval", "5m"))
    names = set(_METRIC.findall(expression))
    assert names
    assert names <= set(shown)
    for name, matchers in re.findall(r"(jobq_[a-z_]+)\{([^}]*)\}", expression):
        for label, operator, wanted in re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers):
            assert label in shown[name], f"{name} has no label {label}"
            if "$" not in wanted:
                values = wanted.split("|") if operator == "=~" else [wanted]
                assert set(values) <= shown[name][label], f"{name} never has {label}={wanted}"


def test_a_wrong_expression_is_found() -> None:
    with pytest.raises(ValueError, match="parenthesis"):
        promql_parser.parse("sum by (queue (jobq_worker_slots)")


def test_each_alert_says_what_it_means_and_what_to_do() -> None:
    for rule in _rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")


@dataclass(frozen=True)
class _Hour:
    """What is scraped in each minute of an hour, in promtool's words, and whether the alert then fires."""

    series: dict[str, str]
    fires: bool


# Of a queue that tells its counts all the time.
_VISIBLE = 'jobq_queue_tasks{queue="q",state="visible"}'
_LEASED = 'jobq_queue_tasks{queue="q",state="leased"}'
_SCHEDULED = 'jobq_queue_tasks{queue="q",state="scheduled"}'
_DEAD = 'jobq_queue_tasks{queue="q",state="dead"}'
_UNFINISHED = 'jobq_queue_unfinished_tasks{queue="q"}'


def _recent(outcome: str) -> str:
    return f'jobq_queue_recent_attempts{{queue="q",outcome="{outcome}"}}'


def _short_lived(series: str, value: str) -> dict[str, str]:
    """Return the series of 30 workers, each of which is scraped once, and then gone."""
    name, labels = series.removesuffix("}").split("{")
    return {f'{name}{{{labels},instance="{n}"}}': f"_x{2 * n} {value} stale" for n in range(30)}


_HOURS: dict[str, dict[str, _Hour]] = {
    "JobqDeadLetters": {
        "none": _Hour({_DEAD: "0x60"}, False),
        "one": _Hour({_DEAD: "0x10 1x50"}, True),
    },
    "JobqTasksWaitAndNothingWorks": {
        "visible": _Hour({_VISIBLE: "1x60", _UNFINISHED: "1x60"}, True),
        "on a Storage Queue": _Hour({_UNFINISHED: "1x60"}, True),
        "on a Service Bus": _Hour({_SCHEDULED: "2x60", _UNFINISHED: "3x60"}, True),
        "all are due tomorrow": _Hour({_VISIBLE: "0x60", _SCHEDULED: "1x60", _UNFINISHED: "1x60"}, False),
        "all are due tomorrow, on a Service Bus": _Hour({_SCHEDULED: "3x60", _UNFINISHED: "3x60"}, False),
        "a long task runs": _Hour(
            {_VISIBLE: "1x60", _UNFINISHED: "2x60", 'jobq_worker_slots{queue="q",state="busy"}': "1x60"}, False
        ),
        "workers that nobody scrapes run a long task": _Hour(
            {_VISIBLE: "9x60", _LEASED: "1x60", _UNFINISHED: "10x60"}, False
        ),
        "workers that live for one scrape": _Hour(
            {_VISIBLE: "9x60", _LEASED: "0x60", _UNFINISHED: "9x60", _recent("succeeded"): "3x60"}
            | _short_lived('jobq_tasks_started_total{queue="q"}', "1"),
            False,
        ),
        "nothing has ended for long": _Hour({_VISIBLE: "9x60", _LEASED: "0x60", _recent("succeeded"): "0x60"}, True),
    },
    "JobqMostAttemptsFail": {
        "by workers that live long": _Hour(
            {
                'jobq_tasks_finished_total{queue="q",outcome="failed"}': "0+3x60",
                'jobq_tasks_finished_total{queue="q",outcome="succeeded"}': "0+1x60",
            },
            True,
        ),
        "most succeed": _Hour(
            {
                'jobq_tasks_finished_total{queue="q",outcome="failed"}': "0+1x60",
                'jobq_tasks_finished_total{queue="q",outcome="succeeded"}': "0+3x60",
            },
            False,
        ),
        "by workers that live for one scrape": _Hour(
            {_recent("failed"): "20x60", _recent("succeeded"): "5x60"}
            | _short_lived('jobq_tasks_finished_total{queue="q",outcome="failed"}', "1"),
            True,
        ),
        "told by none but workers that live for one scrape": _Hour(
            _short_lived(_recent("failed"), "20") | _short_lived(_recent("succeeded"), "5"), True
        ),
        "most succeed, by the journal": _Hour({_recent("failed"): "5x60", _recent("succeeded"): "20x60"}, False),
        "nothing ends": _Hour({_recent("failed"): "0x60", _recent("succeeded"): "0x60"}, False),
    },
    "JobqLeasesAreLost": {
        "by workers that live long": _Hour({'jobq_tasks_settled_total{queue="q",settled="lost"}': "0+1x60"}, True),
        "one now and then": _Hour({_recent("lock_lost"): "1x60"}, False),
        "by workers that live for one scrape": _Hour(
            {_recent("lock_lost"): "9x60"} | _short_lived('jobq_tasks_settled_total{queue="q",settled="lost"}', "1"),
            True,
        ),
    },
    "JobqQueueDoesNotAnswer": {
        "to workers that live long": _Hour({'jobq_receive_failures_total{queue="q"}': "0+3x60"}, True),
        "it answers": _Hour({'jobq_queue_answers{queue="q"}': "1x60"}, False),
        "to workers that live for one scrape": _Hour(_short_lived('jobq_queue_answers{queue="q"}', "0"), True),
        "to one of two": _Hour(
            {
                'jobq_queue_answers{queue="q",instance="a"}': "0x60",
                'jobq_queue_answers{queue="q",instance="b"}': "1x60",
            },
            False,
        ),
    },
}


def test_every_alert_is_played() -> None:
    assert list(_HOURS) == [rule["alert"] for rule in _rules()]
    for hours in _HOURS.values():
        assert {hour.fires for hour in hours.values()} == {True, False}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (package prometheus)")
def test_the_alerts_see_what_they_are_to_see(tmp_path: Path) -> None:
    rules = [rule | {"annotations": {}, "labels": {}} for rule in _rules()]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "jobq", "rules": rules}]}))
    played = [
        {
            "name": f"{alert}: {name}",
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in hour.series.items()],
            "alert_rule_test": [
                {
                    "eval_time": "50m",
                    "alertname": alert,
                    "exp_alerts": [{"exp_labels": {"queue": "q"}}] if hour.fires else [],
                }
            ],
        }
        for alert, hours in _HOURS.items()
        for name, hour in hours.items()
    ]
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": played}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    command = ["promtool", "test", "rules", "test.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_panels_do_not_overlap_and_have_titles() -> None:
    taken: set[tuple[int, int]] = set()
    panels = _dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24  # a dashboard's width
        assert panel["title"]
        taken |= cells
