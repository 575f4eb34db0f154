"""A9: a token with the scopes of a role does what the role does on the command line, and nothing else."""

from pathlib import Path

import pytest

from tests.cli.conftest import Jobq
from tests.service.server import HttpServer, running

pytestmark = pytest.mark.check

ROLES = {"pushes": ("enqueue",), "works": ("lease", "settle"), "counts": ("watch",), "looks": ("view",)}
ROLES |= {"reads": ("read",), "tends": ("operate", "view")}
_BATCH = "a batch of its owner's"
# What each may do of what the roles are made for; nobody else may.
COMMANDS: dict[tuple[str, ...], set[str]] = {
    ("push", "-c", "true"): {"pushes"},
    ("worker", "--max-tasks", "1"): {"works"},
    ("size",): {"counts", "looks", "reads", "tends"},
    ("size", "--by", "shape"): {"counts", "looks", "reads", "tends"},
    ("ps",): {"looks", "reads", "tends"},
    ("peek",): {"reads"},
    ("cancel", "waits"): {"tends"},
    ("pause",): {"tends"},
    ("resume",): {"tends"},
    ("push", "--batch", _BATCH, "-c", "true"): {"pushes"},
    ("batch", "seal", _BATCH): {"pushes"},
    ("batch", "list"): {"looks", "reads", "tends"},
    ("batch", "show", _BATCH): {"looks", "reads", "tends"},
    ("batch", "reopen", _BATCH): {"tends"},
    ("batch", "cancel", _BATCH, "--yes"): {"tends"},
    ("clear", "--yes"): set(),
}


@pytest.fixture
def jobq(tmp_path: Path) -> Jobq:
    return Jobq(tmp_path)


def test_a9_each_role_does_its_own_and_nothing_else(jobq: Jobq, tmp_path: Path) -> None:
    place = f"sqlite://{tmp_path}/jobs.db/demo"
    token = {
        role: jobq("serve", "token", "create", place, *(f"--scope={scope}" for scope in scopes)).out.strip()
        for role, scopes in ROLES.items()
    }
    with running(place, tmp_path, is_open=False) as server:
        check(jobq, server, token)
        works = {"JOBQ_HTTP_TOKEN": token["works"]}
        jobq(f"{server.url}/demo", "push", "--gpus", "1", "-c", "true", env={"JOBQ_HTTP_TOKEN": token["pushes"]})
        assert "that this worker cannot run: gpus=1 (1)" in jobq(f"{server.url}/demo", "worker", env=works).err


def check(jobq: Jobq, server: HttpServer, token: dict[str, str]) -> None:
    spec = f"{server.url}/demo"
    assert server.token_file is not None
    owner = server.token_file.read_text()
    is_as_it_was = False  # what was refused has changed nothing
    for number, (command, may) in enumerate(COMMANDS.items()):
        for role in ROLES:
            if not is_as_it_was:
                jobq(spec, "resume", env={"JOBQ_HTTP_TOKEN": owner})
                jobq(spec, "clear", "--yes", env={"JOBQ_HTTP_TOKEN": owner})
                jobq(spec, "push", "--id", "waits", "-c", "true", env={"JOBQ_HTTP_TOKEN": owner})
            words = [f"{role}{number}" if word == _BATCH else word for word in command]
            if _BATCH in command:
                jobq(spec, "push", "--batch", f"{role}{number}", "--open", "-c", "true", env={"JOBQ_HTTP_TOKEN": owner})
            code = 0 if role in may else 3
            said = jobq(spec, *words, env={"JOBQ_HTTP_TOKEN": token[role]}, code=code)
            assert code == 0 or "does not permit" in said.err, (command, role, said)
            is_as_it_was = code != 0
            assert "0 tasks" not in said.err, "what is not told is not taken for none"
