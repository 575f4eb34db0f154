"""`jobq keys`: keys that sign tasks, and those that workers trust."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from jobq.cli.common import ExampleCommand, SuggestingGroup, duration, json_option, read_settings
from jobq.cli.display import terminal
from jobq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobq.signing.keys import KeyFile, TrustedKey

_PATH: Final = click.Path(path_type=Path)
_TEST: Final = b"jobq keys check"


@click.group(
    cls=SuggestingGroup,
    examples=(
        "jobq keys new bob.key                                   # the secret half: JOBQ_SIGN_KEY_FILE of who pushes",
        "jobq keys show bob.key > bob.public                     # what workers need",
        "jobq keys trust bob.public --queue 'train*' --for 90d   # into the file that JOBQ_TRUSTED_KEYS names",
        "jobq keys check                                         # is it all in order?",
        "jobq keys revoke ed25519-56475aa75463474c",
    ),
)
def keys() -> None:
    """Make keys that sign tasks; list, trust and revoke those of a worker."""


@keys.command(cls=ExampleCommand, examples=("jobq keys new bob.key", "jobq keys new --hmac team.key"))
@click.argument("file", type=_PATH)
@click.option("--hmac", is_flag=True, help="One secret for pushing and working: weaker, each worker could sign.")
@json_option
def new(file: Path, hmac: bool, as_json: bool) -> int:
    """Write a new key to FILE, which nobody else can read, and print its id."""
    from jobq.signing.keys import SigningKey  # noqa: PLC0415 - `jobq --help` must not pay for it

    key = SigningKey.new("hmac-sha256" if hmac else "ed25519")
    key.write_new(file)
    _put_id(key.id, as_json=as_json)
    terminal.say(
        f"{file} is its secret: JOBQ_SIGN_KEY_FILE={file} signs with it; `jobq keys show {file}` is for workers"
    )
    return 0


@keys.command(cls=ExampleCommand, examples=("jobq keys show alice.key > alice.public",))
@click.argument("file", type=_PATH)
@json_option
def show(file: Path, as_json: bool) -> int:  # noqa: ARG001 - it is JSON in any case
    """Print what workers need to trust the key in FILE: of an Ed25519 key its public half, of HMAC the secret."""
    from jobq.signing.keys import SigningKey  # noqa: PLC0415 - as above

    key = SigningKey.read(file).trusted()
    terminal.put(key.model_dump_json(exclude_defaults=True))
    if key.algorithm == "hmac-sha256":
        terminal.say("this is a secret: who has it can sign")
    return 0


@keys.command(cls=ExampleCommand, examples=("jobq keys trust alice.public --queue 'train*' --for 90d",))
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--queue", "queues", multiple=True, metavar="PATTERN", help="For these queues only. Repeatable.")
@click.option(
    "--for", "valid_for", callback=duration, metavar="DURATION", help="Only for so long from now, such as 90d."
)
@click.option("--command", "commands", multiple=True, help="Only these commands, as JOBQ_ALLOW_COMMANDS. Repeatable.")
@click.option("--call", "calls", multiple=True, help="Only these functions, as JOBQ_ALLOW_CALLS. Repeatable.")
@click.option("--variable", "variables", multiple=True, help="What its tasks may bring then, as JOBQ_ALLOW_VARIABLES.")
@click.option("--comment", default="", help="Whose it is.")
@click.option("--restore", is_flag=True, help="Trust a key again that was revoked.")
@json_option
def trust(
    file: Path,
    queues: tuple[str, ...],
    valid_for: timedelta | None,
    commands: tuple[str, ...],
    calls: tuple[str, ...],
    variables: tuple[str, ...],
    comment: str,
    restore: bool,
    as_json: bool,
) -> int:
    """Trust the key in FILE, as `jobq keys show` prints it (- = standard input): write it to JOBQ_TRUSTED_KEYS.

    A key that is trusted already is trusted as said now.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    from jobq.signing.keys import TrustedKey  # noqa: PLC0415 - as above

    try:
        with click.open_file(str(file), "rb") as source:
            given = TrustedKey.model_validate_json(source.read())
        until = None if valid_for is None else datetime.now(UTC).replace(microsecond=0) + valid_for
        limits = {"commands": commands, "calls": calls, "variables": variables, "comment": comment, "not_after": until}
        key = TrustedKey.model_validate({**dict(given), **limits, "queues": queues or ("*",)})
    except OverflowError:
        raise click.BadParameter("so far ahead there is no date", param_hint="'--for'") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except ValidationError as error:
        what = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"this is no key as `jobq keys show` prints it: {what}") from None

    def with_it(known: "tuple[TrustedKey, ...]") -> "tuple[TrustedKey, ...]":
        if not restore and any(each.id == key.id and each.revoked for each in known):
            raise ConfigurationError(f"{key.id} is revoked; --restore trusts it again")
        return (*(each for each in known if each.id != key.id), key)

    _change(with_it)
    _put_id(key.id, as_json=as_json)
    return 0


@keys.command(cls=ExampleCommand, examples=("jobq keys revoke ed25519-56475aa75463474c",))
@click.argument("id_", metavar="ID")
@json_option
def revoke(id_: str, as_json: bool) -> int:
    """Run nothing more that the key ID has signed: it becomes a dead letter. The key stays listed, as revoked."""

    def revoked(known: "tuple[TrustedKey, ...]") -> "tuple[TrustedKey, ...]":
        if all(each.id != id_ for each in known):
            raise ConfigurationError(
                f"no key {terminal.visible(id_)} is trusted; `jobq keys check` lists those that are"
            )
        now = datetime.now(UTC).replace(microsecond=0)
        return tuple(each.model_copy(update={"revoked": now}) if each.id == id_ else each for each in known)

    _change(revoked)
    if as_json:
        _put_id(id_, as_json=True)
    terminal.say(f"{id_} is revoked; workers see it with their next task")
    return 0


@keys.command(cls=ExampleCommand, examples=("jobq keys check", "jobq keys check --json"))
@json_option
def check(as_json: bool) -> int:
    """List the keys that are trusted here, and whether what JOBQ_SIGN_KEY_FILE signs would be; 1 = it would not."""
    from jobq.signing.keys import SigningKey  # noqa: PLC0415 - as above

    settings = read_settings()
    if settings.trusted_keys is None and settings.sign_key_file is None:
        raise ConfigurationError(
            "neither JOBQ_TRUSTED_KEYS nor JOBQ_SIGN_KEY_FILE is set, so there is nothing to check"
        )
    now = datetime.now(UTC)
    trusted = {} if settings.trusted_keys is None else {key.id: key for key in _read(settings.trusted_keys).keys}
    for key in trusted.values():
        state = key.state(now)
        if as_json:
            terminal.put_json({**key.model_dump(mode="json", exclude={"key"}), "state": state})
        else:
            until = "" if key.not_after is None else f" until {key.not_after.astimezone().isoformat(' ', 'minutes')}"
            limited = ", limited to what it lists" if key.commands or key.calls else ""
            comment = f"  {terminal.visible(key.comment)}" if key.comment else ""
            terminal.put(f"{key.id}  {state}{until}  for {' '.join(key.queues)}{limited}{comment}")
    if settings.sign_key_file is None:
        return 0
    own = SigningKey.read(settings.sign_key_file)
    theirs = trusted.get(own.id)
    why = None if theirs is None or theirs.state(now) != "valid" else theirs.has_signed(_TEST, own.sign(_TEST))
    if settings.trusted_keys is not None and not why:
        state = "not trusted" if theirs is None else theirs.state(now)
        terminal.complain(f"what {own.id} signs (JOBQ_SIGN_KEY_FILE) would not be run here: the key is {state}")
        return 1
    terminal.say(f"JOBQ_SIGN_KEY_FILE signs as {own.id}" + (", which is trusted here" if why else ""))
    return 0


def _put_id(id_: str, *, as_json: bool) -> None:
    if as_json:
        terminal.put_json({"id": id_})
    else:
        terminal.put(id_)


def _read(path: Path) -> "KeyFile":
    from jobq.signing.keys import KeyFile  # noqa: PLC0415 - as above

    return KeyFile.read(path)


def _change(change: "Callable[[tuple[TrustedKey, ...]], tuple[TrustedKey, ...]]") -> None:
    """Write the file of trusted keys anew, unless it was changed meanwhile."""
    from jobq.signing.keys import KeyFile  # noqa: PLC0415 - as above

    path = read_settings().trusted_keys
    if path is None:
        raise ConfigurationError("JOBQ_TRUSTED_KEYS is not set: it names the file with the keys that workers trust")
    before = _read(path) if path.exists() else KeyFile()
    after = KeyFile(keys=change(before.keys))
    if path.exists() and _read(path) != before:
        raise ConfigurationError(f"{path} was changed meanwhile; run this again")
    after.write(path)
