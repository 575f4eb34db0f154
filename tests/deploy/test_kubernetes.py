"""deploy/kubernetes: built by kustomize, held to schemas; graces to each other, the query to a database."""

import asyncio
import copy
import shutil
import subprocess
from datetime import timedelta
from functools import cache
from pathlib import Path

import asyncpg
import pytest
import yaml
from pydantic import ValidationError

from jobq.formats import durations
from jobq.settings import Settings
from jobq.settlement import Complete, MoveToDeadLetters, Requeue
from jobq.spec import resolve
from jobq.task import Task, TaskResult
from tests.postgres.server import Database

from . import keda
from .files import DEPLOY, Document, check_grace, documents, tool

DONE = TaskResult(exit_code=0)
OVERLAYS = ("storage-queue", "service-bus", "postgresql", "deployment")
pytestmark = [
    pytest.mark.check,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="builds need kubectl, which is not installed here"),
]


@cache
def built(overlay: str) -> str:
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes/overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def resources(overlay: str) -> dict[str, Document]:
    """Return the resources of an overlay by kind."""
    return copy.deepcopy({document["kind"]: document for document in documents(built(overlay))})


def pod_of(found: dict[str, Document]) -> Document:
    if "Deployment" in found:
        template: Document = found["Deployment"]["spec"]["template"]
    else:
        template = found["ScaledJob"]["spec"]["jobTargetRef"]["template"]
    spec: Document = template["spec"]
    return spec


def as_kubernetes(found: dict[str, Document]) -> list[Document]:
    """Return what Kubernetes itself knows, and a Job such as KEDA makes of a ScaledJob."""
    known = [document for kind, document in found.items() if kind not in keda.SPECS]
    if "ScaledJob" in found:
        spec = found["ScaledJob"]["spec"]["jobTargetRef"]
        known.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "made-by-keda"}, "spec": spec})
    return known


def validated(known: list[Document], folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "resources.yaml"
    file.write_text(yaml.safe_dump_all(known))
    return tool("kubernetes-validate", "--strict", "--kubernetes-version", "1.33", str(file))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_takes_it(overlay: str, tmp_path: Path) -> None:
    done = validated(as_kubernetes(resources(overlay)), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Couldn't find schema" not in done.stdout + done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_fresh_cluster_can_take_it_and_enforces_its_pods(overlay: str) -> None:
    """The namespace comes with it and holds pods to the restricted profile, to which ours keep."""
    found = resources(overlay)
    namespace = found.pop("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for document in found.values():
        assert document["metadata"]["namespace"] == namespace["metadata"]["name"]
    pod = pod_of(found)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all(set(volume) <= {"name", "emptyDir"} for volume in pod["volumes"])
    (container,) = pod["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["image"] == "registry.example/jobq:latest"


def test_a_mistyped_field_of_the_pod_is_found(tmp_path: Path) -> None:
    found = resources("storage-queue")
    pod_of(found)["restartPolcy"] = "Never"
    assert validated(as_kubernetes(found), tmp_path).returncode != 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_keda_takes_it(overlay: str) -> None:
    found = {kind: document for kind, document in resources(overlay).items() if kind in keda.SPECS}
    assert found
    for kind, document in found.items():
        assert document["apiVersion"] == "keda.sh/v1alpha1"
        keda.SPECS[kind].model_validate(document["spec"])


@pytest.mark.parametrize(("key", "value"), [("queueLenght", "1"), ("queueLength", 1)])
def test_a_mistyped_key_of_a_trigger_is_found(key: str, value: object) -> None:
    spec = resources("storage-queue")["ScaledJob"]["spec"]
    spec["triggers"][0]["metadata"][key] = value
    with pytest.raises(ValidationError):
        keda.ScaledJobSpec.model_validate(spec)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pods_grace_is_the_workers(overlay: str) -> None:
    pod = pod_of(resources(overlay))
    environment = {entry["name"]: entry.get("value", "") for entry in pod["containers"][0]["env"]}
    check_grace(environment, timedelta(seconds=pod["terminationGracePeriodSeconds"]))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pod_is_locked_down(overlay: str) -> None:
    pod = pod_of(resources(overlay))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"]}
    health = next(entry["value"] for entry in container["env"] if entry["name"] == "JOBQ_HEALTH_FILE")
    assert str(Path(health).parent) in writable


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_trigger_counts_a_pods_slots_and_its_queue(overlay: str) -> None:
    found = resources(overlay)
    spec = (found.get("ScaledJob") or found["ScaledObject"])["spec"]
    metadata = spec["triggers"][0]["metadata"]
    arguments = pod_of(found)["containers"][0]["args"]
    slots = arguments[arguments.index("--num-workers") + 1]
    assert (
        next(metadata[key] for key in ("queueLength", "messageCount", "targetQueryValue") if key in metadata) == slots
    )
    queue = found["ConfigMap"]["data"]["JOBQ_QUEUE"].rpartition("/")[2]
    assert metadata.get("queueName") == queue or f"'{queue}'" in metadata["query"]


def test_the_deployments_workers_stay() -> None:
    arguments = pod_of(resources("deployment"))["containers"][0]["args"]
    assert durations.parse(arguments[arguments.index("--idle-timeout") + 1]) > timedelta(days=100)


def test_the_query_counts_what_could_run_and_what_runs(postgres: Database) -> None:
    """What is scheduled for later starts no job, what was given up on or done neither."""
    query = resources("postgresql")["ScaledJob"]["spec"]["triggers"][0]["metadata"]["query"]

    async def count() -> list[int]:
        counts = []
        connection = await asyncpg.connect(postgres.url)
        try:
            async with resolve(f"{postgres.url}/myqueue", Settings()) as queue:
                await queue.create(exist_ok=True)
                counts.append(await connection.fetchval(query))
                await queue.push([Task.new(command="true") for _ in range(4)])
                counts.append(await connection.fetchval(query))
                leased, later, done, dead = await queue.receive(4, timedelta(minutes=1), timedelta(0))
                counts.append(await connection.fetchval(query))
                await later.settle(Requeue(later.task.counters, timedelta(hours=1)))
                counts.append(await connection.fetchval(query))
                await done.settle(Complete(DONE))
                await dead.settle(MoveToDeadLetters("failed", ""))
                counts.append(await connection.fetchval(query))
                await leased.settle(Complete(DONE))
                counts.append(await connection.fetchval(query))
        finally:
            await connection.close()
        return counts

    assert asyncio.run(count()) == [0, 4, 4, 3, 1, 0]
