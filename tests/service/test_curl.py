"""The page's requests for other languages are sent as they stand, by curl, to a live service."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.service.server import HttpServer, running

PAGE: Final = Path(__file__).parents[2] / "docs" / "http-service.md"
LINES: Final = [
    line
    for block in re.findall(r"^```text\n(curl .*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_every_request_of_the_page(tmp_path: Path) -> None:
    """In their order: what one of them takes, the next ones renew and give back; with the owner's token."""
    assert len(LINES) > 5, "void: the page shows no requests"
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server:
        assert server.token_file is not None
        token = server.token_file.read_text()
        _send_all(server, token)


def _send_all(server: HttpServer, token: str) -> None:
    for line in LINES:
        sent = line.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        if "TASK" in line:
            server.ask("POST", "/api/tasks", {"tasks": [{"command": "true"}]}, token=token)
            held = server.ask("POST", "/api/tasks/next", {"lease_seconds": 60.0}, token=token)[1]["tasks"][0]
            sent = sent.replace("TASK", held["id"]).replace("RECEIPT", held["receipt"])
        assert accepted(sent, token), line


def accepted(line: str, token: str) -> Any:
    done = subprocess.run(
        ["sh", "-c", f"{line} --silent --show-error --fail-with-body"],
        env=os.environ | {"TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return json.loads(done.stdout)
