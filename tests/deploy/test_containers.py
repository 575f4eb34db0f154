"""Dockerfile, compose, Container Apps and systemd: held to the tools that know their formats, and to our settings."""

import json
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pycep
import pytest
import yaml

from jobq.formats import durations
from jobq.settings import TASK_VARIABLES, Settings, variable_of
from tests.emulators.service_bus.emulator import Emulator
from tests.fork_server import forked

from .files import DEPLOY, ROOT, check_grace, texts, tool, variables

pytestmark = pytest.mark.check

DOCKERFILE = DEPLOY / "Dockerfile"


def test_hadolint_finds_nothing() -> None:
    done = tool("hadolint", "--config", str(DEPLOY / ".hadolint.yaml"), str(DOCKERFILE))
    assert done.returncode == 0, done.stdout
    shell_form = DOCKERFILE.read_text().replace('CMD ["worker"]', "CMD jobq worker")
    assert tool("hadolint", "-", stdin=shell_form).returncode != 0


def test_the_image_runs_as_a_number_and_gets_its_signals() -> None:
    text = DOCKERFILE.read_text()
    assert re.search(r"^USER \d{5,}:\d{5,}$", text, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["jobq"\]$', text, re.MULTILINE)
    assert "STOPSIGNAL SIGTERM" in text
    assert 'CMD ["jobq", "healthcheck"]' in text


def test_what_the_image_copies_is_not_ignored() -> None:
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied: set[str] = set()
    for line in DOCKERFILE.read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            copied |= set(line.split()[1:-1])
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def _compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def test_compose_keeps_to_its_schema(tmp_path: Path) -> None:
    check = ("check-jsonschema", "--builtin-schema", "vendor.compose-spec")
    done = tool(*check, str(DEPLOY / "compose.yaml"))
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DEPLOY / "compose.yaml").read_text().replace("stop_grace_period: 35s", "stop_grace_period: 35"))
    assert tool(*check, str(wrong)).returncode != 0


def test_compose_leaves_workers_the_time_that_they_need() -> None:
    workers = {
        name: service for name, service in _compose()["services"].items() if "worker" in service.get("command", [])
    }
    assert workers
    for service in workers.values():
        told = {"JOBQ_STOP_GRACE": "20s"} | service["environment"]
        check_grace(told, durations.parse(service["stop_grace_period"]))


def test_each_command_of_compose_is_one_of_ours() -> None:
    """Each runs here too, with --help: a mistyped option of it would end with 2."""
    for service in _compose()["services"].values():
        if "build" in service and "entrypoint" not in service:
            words = [word for word in service["command"] if not word.startswith("echo")]
            arguments = [word for word in words if word != "-c"]
            done = forked.run(
                [sys.executable, "-m", "jobq", *arguments, "--help"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr


def test_the_emulators_connection_string_is_what_it_prints() -> None:
    emulator = _compose()["services"]["emulator"]
    ports = [word for word in emulator["command"] if word.isdecimal()]
    settings = _compose()["services"]["emulator-worker"]["environment"]["JOBQ_CONNECTION_STRING"]
    made = Emulator([])
    made.amqp_port, made.http_port = map(int, ports)
    assert settings == made.connection_string


def test_compose_waits_for_health_and_not_for_starts() -> None:
    services = _compose()["services"]
    for service in services.values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition["condition"] in ("service_healthy", "service_completed_successfully")
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in services[name]


def _bicep() -> dict[str, Any]:
    return dict(pycep.BicepParser().parse(file_path=DEPLOY / "container-apps/main.bicep"))


def test_bicep_is_read_by_a_parser_and_has_the_jobs_fields() -> None:
    """The names of the fields are those of azure-mgmt-appcontainers 5.1."""
    job = _bicep()["resources"]["job"]
    properties = job["config"]["properties"]
    assert set(properties) == {"environmentId", "configuration", "template"}
    configuration = properties["configuration"]
    assert set(configuration) == {"triggerType", "replicaTimeout", "replicaRetryLimit", "eventTriggerConfig"}
    scale = configuration["eventTriggerConfig"]["scale"]
    assert set(configuration["eventTriggerConfig"]) == {"parallelism", "replicaCompletionCount", "scale"}
    assert set(scale) == {"minExecutions", "maxExecutions", "pollingInterval", "rules"}
    (rule,) = scale["rules"]
    assert set(rule) == {"name", "type", "identity", "metadata"}
    assert rule["metadata"]["queueLengthStrategy"] == "all"
    (container,) = properties["template"]["containers"]
    assert set(container) == {"name", "image", "args", "resources", "env"}


def test_container_apps_kills_jobs_after_thirty_seconds() -> None:
    (container,) = _bicep()["resources"]["job"]["config"]["properties"]["template"]["containers"]
    environment = {entry["name"]: str(entry["value"]) for entry in container["env"]}
    check_grace(environment, timedelta(seconds=30))


def test_a_broken_bicep_is_refused() -> None:
    text = (DEPLOY / "container-apps/main.bicep").read_text().replace("parallelism: 1", "parallelism 1")
    with pytest.raises(Exception, match="parallelism"):
        pycep.BicepParser().parse(text=text)


UNIT = DEPLOY / "systemd/jobq-worker@.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "jobq"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = UNIT.read_text().replace("/opt/jobq/bin/jobq", str(program))

    def verify(text: str) -> str:
        (tmp_path / "jobq-worker@.service").write_text(text)
        (tmp_path / "jobq-worker@demo.service").write_text(text)
        command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "jobq-worker@demo.service")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return "\n".join(line for line in done.stderr.splitlines() if "jobq-worker" in line)

    assert verify(text) == ""
    assert "KilMode" in verify(text.replace("KillMode", "KilMode"))


def test_systemd_leaves_the_worker_the_time_that_it_needs() -> None:
    text = UNIT.read_text()
    environment = dict(
        pair.split("=", 1) for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE) for pair in line.split()
    )
    stop = re.search(r"^TimeoutStopSec=(.*)$", text, re.MULTILINE)
    assert stop is not None
    check_grace(environment, durations.parse(stop[1]))
    assert "KillMode=mixed" in text


@pytest.mark.parametrize("path", sorted(texts()))
def test_each_variable_is_a_setting(path: str) -> None:
    known = {variable_of(name) for name in Settings.FIELDS} | TASK_VARIABLES
    assert variables(texts()[path]) <= known


def test_each_setting_is_in_the_reference() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert {variable_of(name) for name in Settings.FIELDS} - variables(page) == set()


def test_each_file_says_what_it_was_checked_against() -> None:
    patches = {
        "config.yaml",
        "trigger.yaml",
        "trigger-authentication.yaml",
        "deployment.yaml",
        "disruption-budget.yaml",
    }
    for path, text in texts().items():
        if Path(path).name in patches | {".hadolint.yaml"} and "/overlays/" in path:
            continue  # its kustomization.yaml says it
        if Path(path).name == ".hadolint.yaml":
            continue
        shown = json.dumps(json.loads(text)) if path.endswith(".json") else text
        assert re.search(r"[Cc]hecked (against|by)", shown), path
