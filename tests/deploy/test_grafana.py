"""The dashboard and the alert rules: PromQL that a parser takes, over metrics that workers show."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from jobq.backend import QueueStats
from jobq.events import Events
from jobq.telemetry.metrics import QueueMetrics, WorkerMetrics, exposition
from jobq.telemetry.queue_snapshot import Look
from jobq.telemetry.worker_state import ENDS, WorkerState
from tests.telemetry.scraping import figures

from .files import DEPLOY

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
    queue = QueueMetrics("q", "sqlite", Look(QueueStats(visible=1, leased=1, scheduled=1, dead=1), 1.0))
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


# What the queues tell, to an hour without workers but where some are named: whether tasks wait, and nothing works.
_HOURS: dict[str, tuple[dict[str, int], bool]] = {
    "visible": ({'jobq_queue_tasks{queue="q",state="visible"}': 1, 'jobq_queue_unfinished_tasks{queue="q"}': 1}, True),
    "storage-queue": ({'jobq_queue_unfinished_tasks{queue="q"}': 1}, True),
    "service-bus": (
        {'jobq_queue_tasks{queue="q",state="scheduled"}': 2, 'jobq_queue_unfinished_tasks{queue="q"}': 3},
        True,
    ),
    "all are due tomorrow": (
        {
            'jobq_queue_tasks{queue="q",state="visible"}': 0,
            'jobq_queue_tasks{queue="q",state="scheduled"}': 1,
            'jobq_queue_unfinished_tasks{queue="q"}': 1,
        },
        False,
    ),
    "all are due tomorrow, on a Service Bus": (
        {'jobq_queue_tasks{queue="q",state="scheduled"}': 3, 'jobq_queue_unfinished_tasks{queue="q"}': 3},
        False,
    ),
    "a long task runs": (
        {
            'jobq_queue_tasks{queue="q",state="visible"}': 1,
            'jobq_queue_unfinished_tasks{queue="q"}': 2,
            'jobq_worker_slots{queue="q",state="busy"}': 1,
        },
        False,
    ),
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (package prometheus)")
def test_the_alert_of_waiting_tasks_needs_no_worker_and_minds_no_task_that_is_due_later(tmp_path: Path) -> None:
    name = "JobqTasksWaitAndNothingWorks"
    rule = next(rule for rule in _rules() if rule["alert"] == name)
    rule["annotations"] = {}
    rule["labels"] = {}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "jobq", "rules": [rule]}]}))
    hours = [
        {
            "name": hour,
            "interval": "1m",
            "input_series": [{"series": series, "values": f"{count}x60"} for series, count in told.items()],
            "alert_rule_test": [
                {
                    "eval_time": "50m",
                    "alertname": name,
                    "exp_alerts": [{"exp_labels": {"queue": "q"}}] if fires else [],
                }
            ],
        }
        for hour, (told, fires) in _HOURS.items()
    ]
    test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": hours}
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
