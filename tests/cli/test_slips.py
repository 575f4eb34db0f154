"""Slips of those who set a machine up: each is one line that says what is wrong, where, and what to do; exit code 3."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.task import Task
from tests.cli.conftest import Jobq

pytestmark = pytest.mark.check

PASSWORD = "Sesame#7"
IDENTITY = {
    "AZURE_CLIENT_ID": "11111111-1111-1111-1111-111111111111",
    "AZURE_TENANT_ID": "22222222-2222-2222-2222-222222222222",
    "AZURE_CLIENT_SECRET": "x",
}
STORAGE = "DefaultEndpointsProtocol=https;AccountName=myaccount;AccountKey=YWJj"
BUS = "Endpoint=sb://mynamespace.servicebus.windows.net/;SharedAccessKeyName=x;SharedAccessKey=YWJj"
# Starts a program with an entry of the environment that has no name, which neither Python nor a shell does.
NAMELESS = """
import ctypes, os, sys
entries = [b"%s=%s" % pair for pair in os.environb.items()] + [b"=33:*.yuv=33"]
argv = (ctypes.c_char_p * len(sys.argv))(*map(os.fsencode, sys.argv[1:]))
ctypes.CDLL(None).execve(argv[0], argv, (ctypes.c_char_p * (len(entries) + 1))(*entries))
"""


@pytest.mark.parametrize(
    ("variables", "words", "said"),
    [
        (
            {"AZURE_TENANT_ID": IDENTITY["AZURE_TENANT_ID"] + "\n"},
            ("my/demo", "size"),
            "AZURE_TENANT_ID begins or ends",
        ),
        (
            {"AZURE_TENANT_ID": IDENTITY["AZURE_TENANT_ID"] + "\n"},
            ("my/demo", "check"),
            "AZURE_TENANT_ID begins or ends",
        ),
        ({"AZURE_TENANT_ID": "\t2"}, ("sb://mynamespace/demo", "size"), "AZURE_TENANT_ID begins or ends"),
        ({"AZURE_AUTHORITY_HOST": "http://login.example"}, ("my/demo", "worker"), "is an invalid authority"),
    ],
)
def test_variables_that_sign_in_nobody(
    jobq: Jobq, variables: dict[str, str], words: tuple[str, ...], said: str
) -> None:
    words = (words[0].replace("my/", "myaccount/"), *words[1:])
    found = jobq(*words, env=IDENTITY | variables, code=3).err
    assert "cannot sign in by the AZURE_* variables" in found
    assert said in found
    assert "Traceback" not in found


def test_a_certificate_that_is_not_mounted(jobq: Jobq) -> None:
    env = {name: value for name, value in IDENTITY.items() if name != "AZURE_CLIENT_SECRET"}
    env["AZURE_CLIENT_CERTIFICATE_PATH"] = "/nonexistent"
    assert (
        "No such file or directory: /nonexistent" in jobq("myaccount/demo", "push", "-c", "true", env=env, code=3).err
    )


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (f"http://user:{PASSWORD}@127.0.0.1:9", "HTTPS_PROXY is not a URL that can be read"),
        ("socks5://127.0.0.1:9", "HTTPS_PROXY names a proxy that does not speak HTTP"),
    ],
)
@pytest.mark.parametrize(
    ("words", "string", "more"),
    [
        (("myaccount/demo", "push", "-c", "true"), STORAGE, {}),
        (("sb://mynamespace/demo", "push", "-c", "true"), BUS, {}),
        (("sb://mynamespace/demo", "dead", "list"), BUS, {"JOBQ_SERVICE_BUS_WEBSOCKET": "1"}),
    ],
)
def test_a_proxy_that_cannot_be_read(
    jobq: Jobq, words: tuple[str, ...], string: str, more: dict[str, str], proxy: str, said: str
) -> None:
    """Nothing left this machine, so nothing is in doubt; and the password stays where it is."""
    found = jobq(*words, env={"JOBQ_CONNECTION_STRING": string, "https_proxy": proxy, **more}, code=3).err
    assert said in found
    assert "in doubt" not in found
    assert "Sesame" not in found


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_connection_string_in_quotes_is_taken_as_it_was_meant(jobq: Jobq, quote: str) -> None:
    """It was taken apart at its quotes, and the public cloud was asked in place of the address in it."""
    string = f"{quote}{STORAGE};QueueEndpoint=http://127.0.0.1:9/myaccount{quote}"
    found = jobq("myaccount/demo", "size", env={"JOBQ_CONNECTION_STRING": string}, code=75).err
    assert "127.0.0.1:9" in found


@pytest.mark.parametrize(
    ("variables", "words", "what"),
    [
        ({"JOBQ_HOME": "~no-such-user/x"}, ("q", "size"), "JOBQ_HOME"),
        ({"JOBQ_HOME": "", "XDG_DATA_HOME": "~no-such-user/x"}, ("q", "size"), "XDG_DATA_HOME"),
        ({}, ("sqlite://~no-such-user/x.db/q", "size"), "sqlite://~no-such-user/x.db/q"),
        ({}, ("q", "worker", "--log-dir", "~no-such-user/x"), "--log-dir"),
    ],
)
def test_a_home_that_nobody_knows(jobq: Jobq, variables: dict[str, str], words: tuple[str, ...], what: str) -> None:
    jobq("q", "create")
    found = jobq(*words, env=variables, code=3).err
    assert f"jobq: {what}: the home folder in ~no-such-user/x" in found
    assert "set HOME" in found


def test_a_link_that_leads_back_to_itself(jobq: Jobq) -> None:
    (jobq.folder / "loop").symlink_to("loop")
    assert "leads back to itself" in jobq("run", "--queue-file", "loop", "--", "echo", ":::", "a", code=3).err


def test_a_working_folder_that_was_removed(jobq: Jobq, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = " ".join(map(str, (sys.executable, "-P", "-m", "jobq")))
    for command, code in (("run -- echo ::: a", 0), ("run --queue-file x -- echo ::: a", 3)):
        ended = subprocess.run(
            ["bash", "-c", f"cd {gone} && rmdir {gone} && {words} {command}"],
            env=jobq.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        gone.mkdir(exist_ok=True)
        assert ended.returncode == code, ended.stderr
        assert "Traceback" not in ended.stderr
        assert code == 0 or "the working directory was removed" in ended.stderr


def test_an_entry_of_the_environment_without_a_name(jobq: Jobq) -> None:
    jobq("q", "push", "-c", "echo ran")
    for words in (("q", "worker"), ("run", "--", "echo", "ran"), ("l", "lease", "run", "l", "--", "echo", "ran")):
        ended = subprocess.run(
            [sys.executable, "-c", NAMELESS, *map(os.fsdecode, jobq.argv(*words))],
            env=jobq.environment, cwd=jobq.folder, capture_output=True, text=True, timeout=60, check=False, input="x\n",
        )  # fmt: skip
        assert (ended.returncode, "ran" in ended.stdout) == (0, True), ended.stderr


def test_a_python_that_is_told_to_stay(jobq: Jobq) -> None:
    """With PYTHONINSPECT the end of a worker was a prompt, and its exit code another."""
    jobq("q", "push", "--num-retries", "0", "-c", "exit 3")
    ended = subprocess.run(
        jobq.argv("q", "worker"),
        env=jobq.environment | {"PYTHONINSPECT": "1"}, cwd=jobq.folder,
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ended.returncode == 0
    assert "SystemExit" not in ended.stderr
    assert ">>>" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("option", ["--queue-file", "--joblog"])
def test_an_option_with_an_empty_value(jobq: Jobq, option: str) -> None:
    """Most often a variable that was not set: the run went on without what was asked for."""
    found = jobq("run", option, "", "--", "echo", ":::", "a", code=2).err
    assert f"'{option}': it is empty" in found


def test_a_standard_input_that_is_closed(jobq: Jobq) -> None:
    for words in (("q", "push", "-"), ("run",)):
        command = " ".join(["exec", sys.executable, "-m", "jobq", *words, "<&-"])
        ended = subprocess.run(
            ["bash", "-c", command], env=jobq.environment, cwd=jobq.folder,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (ended.returncode, "cannot read standard input" in ended.stderr) == (2, True), ended.stderr


@pytest.mark.parametrize("words", [("--version",), ("-q", "--version"), ("--help",), ("q", "push", "--help")])
def test_what_cannot_be_printed_is_no_bug_of_jobq(jobq: Jobq, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        found = jobq(*words, stdout=full.fileno(), code=1).err
    assert found == "jobq: cannot write to standard output: No space left on device\n"


def test_an_id_of_another_program_fills_no_screen(jobq: Jobq) -> None:
    jobq.fill(Task(id="x" * 100, command="true"))
    assert jobq("demo", "peek").lines[0].startswith("x" * 97)
