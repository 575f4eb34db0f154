"""Each cause its own plain text and exit code, and no secret in any of them (A5, issue 5, item 6)."""

import math

import pytest

from jobq.errors import ConfigurationError, InvalidSpec
from jobq.settings import Settings
from jobq.spec import resolve
from jobq.testing.http_proxy import Strike
from jobq_azure.connection import Account
from tests.azure.emulator import ACCOUNT, KEY, connection_string
from tests.azure.stage import SHORT, Ended, Stage

_WRONG_KEY = "V1JPTkcta2V5LWNhbmFyeS1XUk9ORy1rZXktY2FuYXJ5LVdST05HLWtleS1jYW5hcnkhISEhISEhISEhISEhISE="
_SIGNATURE = "sv=2021-08-06&ss=q&srt=sco&sp=raup&se=2030-01-01T00:00:00Z&sig=c2lnbmF0dXJlLWNhbmFyeQ%3D%3D"
_SECRETS = (KEY, _WRONG_KEY, "c2lnbmF0dXJlLWNhbmFyeQ", "sig=")


def _told(result: Ended, code: int, *parts: str) -> None:
    text = result.out + result.err
    assert not [secret for secret in _SECRETS if secret in text], "a secret is told"
    assert "Traceback" not in text
    assert result.code == code, text
    for part in parts:
        assert part in text, text


async def test_missing_queue(stage: Stage) -> None:
    place = f"{ACCOUNT}/never-made"
    for command in (("size",), ("worker",), ("push", "--no-create", "-c", "true")):
        result = await stage.run(*command, spec=place, **SHORT)
        _told(result, 4, f"there is no queue {place}; make it with: jobq {place} create")


async def test_push_makes_a_missing_queue_and_create_refuses_an_existing_one(stage: Stage) -> None:
    place = f"{ACCOUNT}/made-by-push-{stage.queue}"
    _told(await stage.run("push", "-c", "true", spec=place), 0)
    _told(await stage.run("create", "--no-exist-ok", spec=place), 3, "exists")
    _told(await stage.run("create", spec=place), 0)


async def test_a_sender_is_told_that_the_queue_is_missing(stage: Stage) -> None:
    stage.proxy.strike(Strike.DENY, "PUT", count=math.inf)
    result = await stage.run("push", "-c", "true", spec=f"{ACCOUNT}/never-made")
    _told(result, 3, "may not do that", "there is no queue")


async def test_an_id_is_refused_where_it_would_not_be_known_again(stage: Stage) -> None:
    _told(await stage.run("push", "--id", "mine", "-c", "true"), 2, "--id")


async def test_wrong_key_and_wrong_signature(stage: Stage) -> None:
    endpoint = f"QueueEndpoint=http://127.0.0.1:{stage.proxy.port}/{ACCOUNT}"
    for signed in (connection_string(stage.proxy.port, _WRONG_KEY), f"{endpoint};SharedAccessSignature={_SIGNATURE}"):
        for command in (("size",), ("worker",), ("push", "-c", "true")):
            result = await stage.run(*command, **{**SHORT, "JOBQ_CONNECTION_STRING": signed})
            _told(result, 3, stage.spec, "refused")


async def test_missing_role(stage: Stage) -> None:
    stage.proxy.strike(Strike.DENY, count=math.inf)
    for command in (("size",), ("worker",), ("push", "-c", "true")):
        _told(await stage.run(*command, **SHORT), 3, "may not do that", "'Storage Queue Data Contributor'")


async def test_a_worker_that_may_not_renew_says_so(stage: Stage) -> None:
    # The role 'Message Processor' gets and deletes; a renewal is an update.
    (task,) = await stage.pushed(command="sleep 60")
    stage.proxy.strike(Strike.DENY, "PUT", count=math.inf)
    worker = await stage.start("worker", **SHORT)
    assert worker.stderr is not None
    async for line in worker.stderr:
        if b"may not do that" in line:
            assert task.id.encode() in line
            return
    raise AssertionError("nothing was told")


async def test_network_is_away(stage: Stage) -> None:
    await stage.proxy.refuse()
    _told(await stage.run("size"), 75, stage.spec, "cannot connect")
    _told(await stage.run("push", "-c", "true"), 75, stage.spec, "cannot connect")


async def test_unknown_host(stage: Stage) -> None:
    signed = f"AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=https://no-such-account.invalid"
    _told(await stage.run("size", JOBQ_CONNECTION_STRING=signed), 75, stage.spec, "no such host")


async def test_no_credential(stage: Stage) -> None:
    nothing = {"JOBQ_CONNECTION_STRING": "", "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
    _told(await stage.run("size", **nothing), 3, stage.spec, "az login", "JOBQ_CONNECTION_STRING")


async def test_unusable_connection_strings(stage: Stage) -> None:
    _told(await stage.run("size", JOBQ_CONNECTION_STRING=f"AccountName={ACCOUNT};Key={KEY}"), 3, "neither AccountKey")
    other = f"AccountName=another;AccountKey={KEY}"
    _told(await stage.run("size", JOBQ_CONNECTION_STRING=other), 3, "is of account 'another'")
    broken = f"AccountName={ACCOUNT};AccountKey=not/base64!;QueueEndpoint=http://127.0.0.1:{stage.proxy.port}/{ACCOUNT}"
    _told(await stage.run("size", JOBQ_CONNECTION_STRING=broken), 3, "AccountKey")
    _told(await stage.run("size", JOBQ_CONNECTION_STRING="QueueEndpoint=nonsense;AccountKey=AAAA"), 3, "no address")


async def test_a_task_inherits_no_connection_string(stage: Stage) -> None:
    await stage.pushed(command="env > seen")
    both = {"AZURE_STORAGE_CONNECTION_STRING": connection_string(stage.proxy.port), "JOBQ_CONNECTION_STRING": ""}
    result = await stage.run("worker", **{**SHORT, **both})
    assert result.code == 0, result.err
    assert KEY not in (stage.folder / "seen").read_text()


def test_names_are_checked_before_anything_is_sent() -> None:
    for spec, part in (
        ("My_Account/jobs", "storage account"),
        ("account/ab", "3 to 56"),
        ("account/" + 57 * "a", "57 characters.*QUEUE-failed"),
        ("account/a--b", "dashes"),
    ):
        with pytest.raises(InvalidSpec, match=part):
            resolve(spec, Settings())


def test_nothing_shows_a_secret() -> None:
    account = Account(ACCOUNT, connection_string(1), "")
    settings = Settings(connection_string=connection_string(1))
    backend = resolve(f"{ACCOUNT}/jobs", settings)
    for thing in (account, backend):
        assert KEY not in repr(thing) + str(vars(thing).get("name"))
    with pytest.raises(ConfigurationError) as caught:
        Account("other", connection_string(1), "")
    assert KEY not in str(caught.value)


def test_azurite_by_one_switch() -> None:
    backend = resolve(f"{ACCOUNT}/jobs", Settings(azurite=True))
    assert backend.name == "jobs"
