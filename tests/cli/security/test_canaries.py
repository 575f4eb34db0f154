"""A5: with a canary in each variable that may hold a credential, jobq writes and shows none of them."""

import os
from pathlib import Path

from jobq.run.process.environment import CREDENTIALS
from jobq.setting_kinds import Setting
from jobq.settings import Settings
from tests.cli.conftest import Jobq

CANARY = "canary-0f6d1c"
SECRET_SETTINGS = [
    f"JOBQ_{name.upper()}" for name, field in Settings.FIELDS.items() if isinstance(field, Setting) and field.is_secret
]
ADDRESSES = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "ALL_PROXY", "OTEL_EXPORTER_OTLP_ENDPOINT"]


def planted() -> dict[str, str]:
    """Return an environment that is full of secrets, none of which a queue on this machine needs."""
    secrets = {name: f"{CANARY}-{name.lower()}" for name in [*CREDENTIALS, *SECRET_SETTINGS]}
    return secrets | {name: f"http://user:{CANARY}-{name}@127.0.0.1:9" for name in ADDRESSES}


def test_no_credential_is_written_or_shown(jobq: Jobq) -> None:
    assert {"JOBQ_CONNECTION_STRING", "JOBQ_HTTP_TOKEN"} <= set(SECRET_SETTINGS)
    env = planted()
    (jobq.folder / "tasks").write_text("env\nexit 3\nnosuchprogram\n")
    said = [
        jobq("demo", "push", "tasks", "--num-retries", "0", "--json", env=env),
        jobq("demo", "push", "--env", "OWN=1", "--call", "os:getcwd", env=env),
        jobq("demo", "peek", "-n", "9", "--json", env=env),
        jobq("demo", "worker", "-n", "2", "--json", "--log-dir", "logs", env=env),
        jobq("demo", "worker", "-v", "--log-format", "text", env=env),
        jobq("config", env=env),
        jobq("config", "--json", env=env),
        jobq("nosuch/queue", "size", env=env, code=None),
        jobq("sb://nosuch/queue", "size", "-v", env=env | {"JOBQ_CONNECTION_STRING": f"Endpoint={CANARY}"}, code=None),
        jobq("postgresql://127.0.0.1:9/nosuch/queue", "size", env=env, code=None),
        jobq("http://127.0.0.1:9/queue", "size", env=env, code=None),
    ]
    looks = (("stats",), ("ps",), ("dead", "list", "--json"), ("size", "--json"), ("status", "x"), ("logs", "x"))
    said += [jobq("demo", *words, env=env, code=None) for words in looks]
    for each in said:
        assert CANARY not in each.out + each.err
    written = [Path(place) / name for place, _, names in os.walk(jobq.folder) for name in names]
    assert [path for path in written if CANARY.encode() in path.read_bytes()] == []
