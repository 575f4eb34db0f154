"""A1: what is signed and how, told apart from what was not; keys and their files."""

import base64
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from jobq.errors import ConfigurationError, MalformedTask
from jobq.formats import strict_json
from jobq.formats.wire_v3 import Signature, pre_authentication_encoding, work_in
from jobq.resources.request import Resources
from jobq.run.attempt import allowed
from jobq.run.attempt.retry import Reason
from jobq.run.attempt.signature_check import Refused, SignatureCheck, Verified
from jobq.settings import Settings
from jobq.signing.keys import KeyFile, SigningKey, TrustedKey
from jobq.signing.signer import Signer, locations
from jobq.spec import parse
from jobq.task import Budgets, Counters, Task

NOW = 1_900_000_000.0
SEED = base64.b64encode(bytes(range(32))).decode()
# By openssl (`pkeyutl -sign -rawin`, `dgst -sha256 -mac HMAC`), for programs that read or write such messages else.
TEXT = (
    '{"id":"golden","command":"echo ü","env":{},"priority":0,"budgets":{"retries":3,"preemptions":100,"crashes":3},'
    '"trace_context":{},"not_after":2000000000.0,"audience":{"location":"embedded","queues":["demo"]}}'
)
ED25519_ID = "ed25519-56475aa75463474c"
ED25519_PUBLIC = "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
ED25519_SIGNATURE = "KiC/fDhhXpGYKtqusqyzh4wu2PvQ0hM7g2KHRywjz27vR5/8dhpITh/DsJ5HKO12j7N+tIGIyCw7WXkVQM/ABA=="
HMAC_SIGNATURE = "exQfvVavqFv2W8G+I/tY2XcP+ZHKrB4HwcVSghcp1DM="


def key_named(algorithm: str, id_: str) -> SigningKey:
    return SigningKey.model_validate({"id": id_, "algorithm": algorithm, "secret": SEED})


def golden(text: str = TEXT, **changes: Any) -> bytes:
    signatures = [{"keyid": ED25519_ID, "sig": ED25519_SIGNATURE}]
    state = {"counters": {"failures": 0, "preemptions": 0, "ends": 0}, "epoch": 0, "generation": 0}
    fields = {"version": 3, "work": text, "state": state, "signatures": signatures, **changes}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def trusted_file(folder: Path, *keys: TrustedKey) -> Path:
    path = folder / "trusted.json"
    KeyFile(keys=keys).write(path)
    return path


def check_of(path: Path, mode: str = "on", queue: str = "demo") -> SignatureCheck:
    return SignatureCheck(Settings(require_signed=mode, trusted_keys=path), ("embedded",), queue)


@pytest.fixture
def check(tmp_path: Path) -> SignatureCheck:
    return check_of(trusted_file(tmp_path, key_named("ed25519", ED25519_ID).trusted()))


def reason(check: SignatureCheck, body: bytes, now: float = NOW) -> Reason | str | None:
    found = check.verify("golden", (body), now)
    assert isinstance(found, Refused), found
    return found.reason or found.why


def test_golden_vectors() -> None:
    message = pre_authentication_encoding(TEXT)
    assert message == b"DSSEv1 30 application/vnd.jobq.work+json 208 " + TEXT.encode()
    own = key_named("ed25519", ED25519_ID)
    assert own.trusted().model_dump(mode="json", exclude_defaults=True) == {
        "id": ED25519_ID,
        "algorithm": "ed25519",
        "key": ED25519_PUBLIC,
    }
    assert base64.b64encode(own.sign(message)).decode() == ED25519_SIGNATURE
    assert base64.b64encode(key_named("hmac-sha256", "team").sign(message)).decode() == HMAC_SIGNATURE
    assert golden() == Task.decode(golden()).encode(), "the envelope, byte for byte"


def test_the_golden_message_is_verified(check: SignatureCheck) -> None:
    found = check.verify("golden", golden(), NOW)
    assert isinstance(found, Verified)
    assert (found.work.text, found.key.id) == (TEXT, ED25519_ID)
    task = Task.decode(golden())
    assert check.compare(task, found) is None
    other = task.copied({"work": work_in(TEXT.replace("echo", "evil"))[0]})
    refused = check.compare(other, found)
    assert refused is not None, "what is run is what was verified, wherever it came from"
    assert refused.reason is Reason.UNSIGNED


def test_each_bit_flipped(check: SignatureCheck) -> None:
    """Whatever one bit does, other work than what was signed is never run; only the counters are not signed."""
    body = golden()
    verified = 0
    for number in range(len(body) * 8):
        flipped = bytearray(body)
        flipped[number // 8] ^= 1 << number % 8
        found = check.verify("golden", bytes(flipped), NOW)
        if isinstance(found, Verified):
            verified += 1
            assert found.work.text == TEXT
            try:
                task = Task.decode(bytes(flipped))
            except MalformedTask:
                continue
            assert task.work == Task.decode(body).work
            assert check.compare(task, found) is None
    assert 0 < verified < 8 * (len(body) - len(TEXT))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, Reason.UNSIGNED),
        ({"signatures": []}, Reason.UNSIGNED),
        ({"signatures": [{"keyid": "else", "sig": ED25519_SIGNATURE}]}, "it was signed by else, which JOBQ_TRUSTED"),
        ({"signatures": [{"keyid": ED25519_ID, "sig": "AAAA"}]}, Reason.BAD_SIGNATURE),
        ({"work": TEXT.replace("echo", "evil")}, Reason.BAD_SIGNATURE),
        ({"work": TEXT + " "}, Reason.BAD_SIGNATURE),
    ],
)
def test_what_is_refused(check: SignatureCheck, change: dict[str, Any], why: Reason | str) -> None:
    found = reason(check, golden(**change))
    assert str(found).startswith(why)


def test_down_to_version_2(check: SignatureCheck) -> None:
    """Who strips the envelope strips the signature."""
    plain = Task.decode(golden()).copied({"work": None})
    assert reason(check, plain.encode()) is Reason.UNSIGNED


def test_audience_and_time(tmp_path: Path, check: SignatureCheck) -> None:
    path = tmp_path / "trusted.json"
    assert reason(check_of(path, queue="other"), golden()) is Reason.WRONG_QUEUE
    elsewhere = SignatureCheck(Settings(require_signed="on", trusted_keys=path), ("account",), "demo")
    assert reason(elsewhere, golden()) is Reason.WRONG_QUEUE
    assert reason(check, golden(), now=2_000_000_001.0) is Reason.EXPIRED
    later = _signed(Task.new(command="true", id="golden", not_before=NOW + 60), tmp_path)
    found = check.verify("golden", later, NOW)
    assert isinstance(found, Refused)
    assert (found.reason, found.wait) == (None, timedelta(seconds=60))


def test_what_of_a_key_counts(tmp_path: Path) -> None:
    own = key_named("ed25519", ED25519_ID).trusted()
    now = datetime.fromtimestamp(NOW, UTC)
    hour = timedelta(hours=1)
    for changes, why in (
        ({"revoked": now - hour}, Reason.REVOKED_KEY),
        ({"not_after": now - hour}, Reason.EXPIRED),
        ({"not_before": now + hour}, f"it was signed by {ED25519_ID}, which does not count yet"),
        ({"queues": ("train*",)}, f"it was signed by {ED25519_ID}, which is not trusted for queue demo"),
    ):
        path = trusted_file(tmp_path, own.model_copy(update=changes))
        assert reason(check_of(path), golden()) == why
    listed = check_of(trusted_file(tmp_path, own.model_copy(update={"commands": ("^echo ok",)})))
    found = listed.verify("golden", golden(), NOW)
    assert isinstance(found, Verified)
    refused = listed.compare(Task.decode(golden()), found)
    assert refused == Refused(f"its command is not among the commands of its key {ED25519_ID}")


def test_a_key_is_replaced_while_two_sign(tmp_path: Path) -> None:
    """Rotation: what both keys have signed is run by who trusts either; one signature that is forged spoils nothing."""
    second = SigningKey.new()
    message = pre_authentication_encoding(TEXT)
    given = [
        {"keyid": ED25519_ID, "sig": ED25519_SIGNATURE},
        {"keyid": second.id, "sig": base64.b64encode(second.sign(message)).decode()},
    ]
    for key in (key_named("ed25519", ED25519_ID), second):
        found = check_of(trusted_file(tmp_path, key.trusted())).verify("golden", golden(signatures=given), NOW)
        assert isinstance(found, Verified)
        assert found.key.id == key.id


def test_warn_names_what_is_wrong_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = trusted_file(tmp_path, key_named("ed25519", ED25519_ID).trusted())
    check = check_of(path, "warn")
    body = golden(TEXT.replace("echo", "evil"))
    for _ in range(2):
        found = check.verify("golden", body, NOW)
        assert found is None
        assert check.compare(Task.decode(body), found) is None
    (record,) = caplog.records
    assert "on would make it a dead letter (bad_signature)" in record.getMessage()


def test_a_task_that_is_too_large_with_its_signature_is_not_pushed(tmp_path: Path) -> None:
    task = Task.new(call="m:f", kwargs={"text": '"' * 300_000})  # quoted again in what is signed
    with pytest.raises(MalformedTask, match="bytes, at most"):
        _signed(task, tmp_path)


def test_what_this_worker_has_done_already_is_a_replay(tmp_path: Path) -> None:
    own = key_named("ed25519", ED25519_ID)
    task = Task.decode(_signed(Task.new(command="x", id="golden"), tmp_path))
    check, now = check_of(trusted_file(tmp_path, own.trusted())), time.time()
    assert isinstance(check.verify("golden", task.encode(), now), Verified)
    check.succeeded(task)
    found = check.verify("other", task.encode(), now)
    assert isinstance(found, Refused)
    assert found.reason is Reason.REPLAYED


def test_a_key_for_commands_signs_no_work_of_callbacks() -> None:
    key = key_named("ed25519", ED25519_ID).trusted()
    callback = Task.new(kwargs={"n": 1})
    assert allowed.by_key(callback, key) is None
    assert "a function of the worker's program" in str(
        allowed.by_key(callback, key.model_copy(update={"calls": ("a:b",)}))
    )


def test_a_push_is_repeated_with_another_key(tmp_path: Path) -> None:
    """S8: a resumed push could not go on after its key was replaced; without any it is another submission."""
    task = Task.new(command="x", id="x")
    signed = []
    for key in ("old", "new"):
        SigningKey.new().write_new(tmp_path / key)
        signed += Signer(Settings(sign_key_file=tmp_path / key), "embedded", "demo").sign([task])
    assert signed[0].encode() != signed[1].encode()
    assert signed[0].fingerprint() == signed[1].fingerprint() != task.fingerprint()


@pytest.mark.parametrize(
    ("spec", "other"),
    [
        ("postgresql://pusher@DB.internal/work/demo", "postgres://worker@db.internal/work/demo"),
        ("http://Jobs:8000/demo", "http://jobs:8000/demo"),
        ("sqlite://x/../jobs.db/demo", "sqlite://jobs.db/demo"),
    ],
)
def test_one_place_has_one_name(spec: str, other: str) -> None:
    assert locations(Settings(), parse(spec)) == locations(Settings(), parse(other))
    assert locations(Settings(audience=("a", "b")), parse(spec)) == ("a", "b")


def test_two_files_are_two_places(tmp_path: Path) -> None:
    here, there = Settings(home=tmp_path / "here"), Settings(home=tmp_path / "there")
    assert locations(here, parse("demo")) != locations(there, parse("demo"))


def test_the_file_is_read_again_when_it_changes_and_trusts_nobody_when_it_cannot_be(
    tmp_path: Path, check: SignatureCheck
) -> None:
    path = tmp_path / "trusted.json"
    assert isinstance(check.verify("golden", golden(), NOW), Verified)
    KeyFile().write(path)
    assert "does not hold" in str(reason(check, golden()))
    path.write_text("{")
    assert "JOBQ_TRUSTED_KEYS cannot be read" in str(reason(check, golden()))
    path.unlink()
    assert "No such file" in str(reason(check, golden()))
    trusted_file(tmp_path, key_named("ed25519", ED25519_ID).trusted())
    path.chmod(0o622)
    assert "others may change it" in str(reason(check, golden()))
    path.chmod(0o600)
    assert isinstance(check.verify("golden", golden(), NOW), Verified)


def test_the_algorithm_is_the_keys_own(tmp_path: Path) -> None:
    """The classic confusion: a public key that is no secret, taken as the secret of HMAC."""
    public = key_named("ed25519", ED25519_ID).trusted()
    forger = SigningKey.model_validate(
        {"id": "x", "algorithm": "hmac-sha256", "secret": base64.b64encode(public.key).decode()}
    )
    forged = base64.b64encode(forger.sign(pre_authentication_encoding(TEXT))).decode()
    check = check_of(trusted_file(tmp_path, public))
    assert reason(check, golden(signatures=[{"keyid": ED25519_ID, "sig": forged}])) is Reason.BAD_SIGNATURE
    with pytest.raises(ValidationError, match="the id of this key is"):
        TrustedKey.model_validate({"id": "ed25519-0", "algorithm": "ed25519", "key": ED25519_PUBLIC})


def test_files_that_others_can_read_or_that_are_another_users(tmp_path: Path) -> None:
    path = tmp_path / "own.key"
    SigningKey.new().write_new(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigurationError, match="File exists"):
        SigningKey.new().write_new(path)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="others may read it; mend that with: chmod go-rwx"):
        SigningKey.read(path)
    shared = trusted_file(tmp_path, key_named("hmac-sha256", "team").trusted())
    shared.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others may read it"):
        KeyFile.read(shared)
    shared.chmod(0o600)
    if os.getuid() == 0:
        os.chown(shared, 65534, 65534)
        os.seteuid(0)
        with pytest.raises(ConfigurationError, match="belongs to another user"):
            KeyFile.read(shared)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"work": 1}, "work: must be a string"),
        ({"work": "[]"}, "work: must hold a JSON object"),
        ({"work": "{"}, "not JSON"),
        ({"work": '{"command":"x"}'}, r"work\.id: must be a string"),
        ({"work": '{"id":"a","id":"b","command":"x"}'}, "key stands twice"),
        ({"work": '{"id":"a","command":"x","epoch":7}'}, r"work\.epoch: is no part of work"),
        ({"work": '{"id":"a","command":"x","work":{}}'}, r"work\.work: is no part of work"),
        ({"work": '{"id":"a","command":"x","lives":9}'}, "lives: unknown field"),
        ({"work": '{"id":"a","command":"x","audience":"demo"}'}, r"work\.audience"),
        ({"work": '{"id":"a","command":"x","not_after":"soon"}'}, r"work\.not_after"),
        ({"state": {"command": "evil"}}, "command: unknown field"),
        ({"state": {"priority": 9}}, "priority: unknown field"),
        ({"state": []}, "state: must be an object"),
        ({"state": {"epoch": -1}}, "epoch"),
        ({"signatures": "x"}, "signatures: must be an array"),
        ({"signatures": [{"keyid": "a"}]}, r"signatures\.0: must be an object"),
        ({"signatures": [{"keyid": "a", "sig": "%"}]}, r"signatures\.0\.sig: must be base64"),
        ({"signatures": [{"keyid": "a", "sig": ""}] * 9}, "of 8 at most"),
        ({"signatures": [{"keyid": "k" * 101, "sig": ""}]}, r"signatures\.0\.keyid: has 101 characters"),
        ({"work": '{"id":"a","command":"x","not_before":' + "9" * 399 + "}"}, r"work\.not_before: must be a time"),
        ({"command": "evil"}, "'command': unknown field in version 3"),
    ],
)
def test_envelopes_that_are_none(change: dict[str, Any], says: str) -> None:
    with pytest.raises(MalformedTask, match=says):
        Task.decode(golden(**change))


def test_what_a_task_asks_for_is_signed() -> None:
    text = TEXT.replace('"env":{}', '"env":{},"resources":{"gpus":1000},"needs":["eu"]')
    task = Task.decode(golden(text))
    assert (task.resources, task.needs) == (Resources(gpus=1000), ("eu",))
    assert golden(text) == task.encode()
    with pytest.raises(MalformedTask, match=r"resources\.gpu: unknown field"):
        Task.decode(golden(TEXT.replace('"env":{}', '"env":{},"resources":{"gpu":1}')))


def test_counters_and_date_are_beside_the_work() -> None:
    task = Task.decode(golden()).requeued(failures=1)
    read = Task.decode(task.encode())
    assert (read.counters, read.generation, read.work) == (Counters(failures=1, ends=1), 1, task.work)
    assert read.budgets == Budgets()
    assert read.fingerprint() != read.copied({"work": None}).fingerprint(), "unsigned, it might be refused"


def test_what_nobody_has_signed_is_refused_wherever_it_is_kept(check: SignatureCheck) -> None:
    # In a ledger's message it is work in a text, which nobody has signed either.
    for task in (Task.new(command="true"), Task.new(command="true").in_ledger(".s7")):
        for refused in (check.verify(task.id, task.encode(), NOW), check.compare(Task.decode(task.encode()), None)):
            assert isinstance(refused, Refused)
            assert refused.reason == Reason.UNSIGNED


def test_a_program_signs(tmp_path: Path) -> None:
    key = tmp_path / "own.key"
    key_named("ed25519", ED25519_ID).write_new(key)
    program = tmp_path / "signer.py"
    program.write_text(
        "import base64, sys, pathlib\n"
        "from jobq.signing.keys import SigningKey\n"
        f"key = SigningKey.read(pathlib.Path({str(key)!r}))\n"
        "for line in sys.stdin.buffer: print(base64.b64encode(key.sign(base64.b64decode(line))).decode())\n"
    )
    settings = Settings(sign_command=f"{sys.executable} {program}", sign_key_id=ED25519_ID)
    tasks = [Task.new(command="true", id="golden"), Task.decode(golden()), Task.new(command="false", id="golden")]
    signed = Signer(settings, "embedded", "demo").sign(tasks)
    assert [task.command for task in signed] == ["true", "echo ü", "false"]
    assert signed[1] is tasks[1], "what was signed stays as it is"
    path = trusted_file(tmp_path, key_named("ed25519", ED25519_ID).trusted())
    for task in signed:
        assert isinstance(check_of(path).verify("golden", task.encode(), time.time()), Verified)


@pytest.mark.parametrize("program", ["false", "true", "echo AAAA AAAA", "echo %", "/nonexistent"])
def test_a_program_that_does_not_sign(program: str) -> None:
    signer = Signer(Settings(sign_command=program, sign_key_id="a"), "embedded", "demo")
    with pytest.raises(ConfigurationError, match="JOBQ_SIGN_COMMAND: "):
        signer.sign([Task.new(command="true")])


def _signed(task: Task, folder: Path) -> bytes:
    path = folder / "own.key"
    key_named("ed25519", ED25519_ID).write_new(path)
    (signed,) = Signer(Settings(sign_key_file=path), "embedded", "demo").sign([task])
    assert signed.copied({"work": None}) == task
    assert Task.decode(signed.encode()) == signed
    return signed.encode()


def test_signing_adds_signature_and_audience(tmp_path: Path) -> None:
    task = Task.new(argv=["a", "ü\n"], env={"A": "1"}, on_exit=("3=fail",), budgets=Budgets(retries=1))
    fields = json.loads(strict_json.loads(_signed(task, tmp_path))["work"])
    assert fields["audience"] == {"location": "embedded", "queues": ["demo"]}
    assert 0 < fields["not_after"] - fields["created"] - 30 * 86400 < 60
    other = Task.new(command="x", work=work_in('{"id":"a","command":"x"}', (Signature("k", b""),))[0])
    assert Task.decode(other.encode()).work == other.work
