"""A service on this machine's loopback is its owner's: others need a token that was made for them (A8)."""

import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.settings import Settings
from jobq.spec import resolve
from tests.cli.conftest import Jobq, eventually
from tests.service.server import HttpServer, running

pytestmark = pytest.mark.check


@pytest.fixture
def jobq(tmp_path: Path) -> Jobq:
    """The owner's command line."""
    line = Jobq(tmp_path)
    line.environment["JOBQ_HOME"] = str(tmp_path)  # as the service's
    return line


def own(server: HttpServer) -> Path:
    assert server.token_file is not None
    return server.token_file


def test_its_owners_commands_find_the_token_and_nobody_else_is_let_in(jobq: Jobq, tmp_path: Path) -> None:
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server:
        spec = f"{server.url}/demo"
        assert server.ask("POST", "/api/tasks", {"tasks": [{"command": "id > stolen"}]})[0] == 401
        jobq(spec, "push", "-c", "echo ran > ran")
        jobq(spec, "worker")
        assert (tmp_path / "ran").read_text() == "ran\n"
        assert not (tmp_path / "stolen").exists()
        other = jobq(spec, "push", "-c", "true", env={"JOBQ_HOME": str(tmp_path / "other")}, code=3).err
        assert "JOBQ_HTTP_TOKEN" in other
        token = own(server).read_text()
        assert jobq(spec, "size", env={"JOBQ_HOME": str(tmp_path / "other"), "JOBQ_HTTP_TOKEN": token}).code == 0
        assert token.rpartition("_")[2] not in server.logged() + other
        file = own(server)
        assert [stat.S_IMODE(each.stat().st_mode) for each in (file, file.parent)] == [0o600, 0o700]
        assert file.stat().st_uid == os.getuid()
        assert list(file.parent.iterdir()) == [file]


def test_tokens_that_were_made_are_good_beside_it(jobq: Jobq, tmp_path: Path) -> None:
    place = f"sqlite://{tmp_path}/jobs.db/demo"
    token = jobq("serve", "token", "create", place, "--scope", "read").out.strip()
    with running(place, tmp_path, is_open=False) as server:
        spec = f"{server.url}/demo"
        jobq(spec, "push", "-c", "true")
        refused = jobq(spec, "push", "-c", "true", env={"JOBQ_HTTP_TOKEN": token}, code=3).err
        assert "does not permit enqueue" in refused
    with running(place, tmp_path) as server:  # --no-token
        assert server.ask("GET", "/api/tasks")[0] == 401, "once a token was made, one is wanted of everybody"


async def test_a_token_ends_with_its_service_and_those_who_use_it_go_on(tmp_path: Path) -> None:
    """Who took the port meanwhile, and was sent the token, has nothing of it; the owner's commands read the new one."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server:
        backend = resolve(f"{server.url}/demo", Settings(home=tmp_path))
        former = own(server).read_text()
        assert server.ask("GET", "/api/tasks", token=former)[0] == 200
        async with backend:
            assert (await backend.stats()).visible == 0
        server.kill()
        server.start()
        async with backend:
            assert (await backend.stats()).visible == 0
        assert server.ask("GET", "/api/tasks", token=former)[0] == 401


def test_a_worker_outlives_its_service(jobq: Jobq, tmp_path: Path) -> None:
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server:
        spec = f"{server.url}/demo"
        jobq(spec, "push", "-c", "echo one > one")
        worker = jobq.start(spec, "worker", "--idle-timeout", "1m", stdin=-3, stdout=-3, stderr=-3)
        eventually((tmp_path / "one").exists)
        server.kill()
        server.start()
        jobq(spec, "push", "-c", "echo two > two")
        eventually((tmp_path / "two").exists)
        worker.terminate()
        worker.wait(20)


def test_what_stands_where_the_token_goes_is_replaced(tmp_path: Path) -> None:
    """A link, or a file that others may read: it is not written through, nor left as it is."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server:
        file = own(server)
        server.kill()
        for lie in ("link", "file"):
            file.unlink()
            (tmp_path / "elsewhere").write_text("mine")
            if lie == "link":
                file.symlink_to(tmp_path / "elsewhere")
            else:
                file.write_text("mine")
                file.chmod(0o644)
            server.start()
            assert not file.is_symlink()
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert (tmp_path / "elsewhere").read_text() == "mine"
            assert server.ask("GET", "/api/tasks", token=file.read_text())[0] == 200
            server.kill()


def test_of_two_that_start_on_one_port_the_one_that_listens_has_left_its_token(jobq: Jobq, tmp_path: Path) -> None:
    """The second was bound to the port too before the first listened, and replaced its token."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server:
        file = own(server)
        server.kill()
        folder = os.open(file.parent, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)  # both wait here, and begin together
        arguments = ("serve", f"sqlite://{tmp_path}/jobs.db/demo", "--port", str(server.port), "--json")
        both = [jobq.start(*arguments, stdin=-3, stdout=-1, stderr=-1) for _ in range(2)]
        waiting = Path("/proc/locks")
        eventually(lambda: waiting.read_text().count(f":{file.parent.stat().st_ino} ") == 3)
        os.close(folder)
        eventually(lambda: any(each.poll() is not None for each in both))
        loser, winner = sorted(both, key=lambda each: each.poll() is None)
        _, said = loser.communicate()
        assert loser.returncode == 3
        assert b"name another --port" in said
        assert winner.stdout is not None
        assert winner.stdout.readline().startswith(b"{")
        assert server.ask("GET", "/api/tasks", token=file.read_text())[0] == 200
        winner.terminate()
        winner.communicate()


def test_services_on_one_port_of_several_addresses_have_a_token_each(jobq: Jobq, tmp_path: Path) -> None:
    """The second overwrote the first one's, whose owner's commands were refused."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as first:
        spec = f"sqlite://{tmp_path}/others.db/demo"
        for address in ("127.0.0.2", "::1"):
            second = jobq.start(
                "serve", spec, "--host", address, "--port", str(first.port), "--json", stdin=-3, stderr=-3
            )
            assert second.stdout is not None
            url = json.loads(second.stdout.readline())["url"]
            jobq(f"{url}/demo", "push", "-c", "true")
            jobq(f"{first.url}/demo", "push", "-c", "true")
            jobq(f"http://localhost:{first.port}/demo", "size")  # goes to 127.0.0.1, with its token
            second.terminate()
            second.communicate()
            assert second.returncode == 0
        own(first).touch()
        assert jobq(f"http://localhost:{first.port}/demo", "size").lines[1].split()[0] == "2"


def test_a_place_where_no_token_can_be_kept_says_what_to_do(jobq: Jobq, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = jobq(
        "serve", f"sqlite://{tmp_path}/jobs.db/demo", "--port", "0", env={"JOBQ_HOME": str(tmp_path / "file")}, code=3
    )  # fmt: skip
    assert "JOBQ_HOME" in said.err
    assert "--no-token" in said.err


_POSES = """
import http.server, json, os, sys
"host".encode("idna")  # what is imported late is not to be read as that user
os.setuid(65534)
class Poses(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        task = {"version": 2, "id": "evil", "command": "touch planted"}
        lease = {"receipt": "r", "lease_seconds": 60.0, "deliveries": 1, "fencing": "0.0.1", "checkpoint": None}
        body = json.dumps({"tasks": [{"id": "evil", "body": json.dumps(task), "task": task} | lease]}).encode()
        self.send_response(200)
        self.send_header("Jobq-Service", "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_PUT = do_GET = do_POST
    def log_message(self, *_):
        print(self.headers.get("Authorization", "asked"), file=sys.stderr, flush=True)
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Poses)
print("listens", flush=True)
server.serve_forever()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed, and only root can be one")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_another_user_who_takes_the_port_is_told_nothing_and_nothing_is_run_of_his(
    jobq: Jobq, tmp_path: Path, host: str
) -> None:
    """A worker ran what came from there, and sent its token."""
    with running(f"sqlite://{tmp_path}/jobs.db/demo", tmp_path, is_open=False) as server:
        spec = f"http://{host}:{server.port}/demo"
        jobq(spec, "push", "-c", "true")
        server.kill()
        poser = subprocess.Popen(
            [sys.executable, "-I", "-c", _POSES, str(server.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert poser.stdout is not None
            assert poser.stdout.readline() == "listens\n"
            said = jobq(spec, "worker", code=75).err
            assert "another user of this machine" in said
            assert not (tmp_path / "planted").exists()
        finally:
            poser.kill()
            _, asked = poser.communicate()
        assert asked == ""
        server.start()
        jobq(spec, "worker")
