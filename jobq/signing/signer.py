"""What signs tasks when they are pushed: a key in a file, or a program that has one.

Both are named by the settings with which the queue was opened. Work that is signed already goes on as it is.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Final

from jobq.backend import Backend
from jobq.clock import SystemClock
from jobq.errors import ConfigurationError
from jobq.formats.user_paths import user_path
from jobq.formats.wire_v3 import BOOKKEEPING, STATE, Signature, pre_authentication_encoding, work_in
from jobq.settings import Settings, user_home
from jobq.spec import EMBEDDED, QueueSpec, origin_of
from jobq.task import Task

_PROGRAM_SECONDS: Final = 60.0  # for the signatures of one batch


class Signer:
    """Signs for one queue.

    Args:
        settings: which key, and for how long its signatures count.
        location: of the queue.
        queue: its name.

    Raises:
        ConfigurationError: the key cannot be read, or two ways to sign are set.
    """

    def __init__(self, settings: Settings, location: str, queue: str) -> None:
        from jobq.signing.keys import SigningKey  # noqa: PLC0415 - pydantic is for those who sign

        self._settings = settings
        self._location = location
        self._queue = queue
        try:
            self._key = None if settings.sign_key_file is None else SigningKey.read(settings.sign_key_file)
        except ConfigurationError as error:
            raise ConfigurationError(f"JOBQ_SIGN_KEY_FILE: {error}") from None
        if settings.sign_command is not None and (self._key is not None or settings.sign_key_id is None):
            what = "JOBQ_SIGN_KEY_FILE is set beside it" if self._key is not None else "JOBQ_SIGN_KEY_ID is not set"
            raise ConfigurationError(f"JOBQ_SIGN_COMMAND: {what}")

    def sign(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks with their work signed.

        Raises:
            ConfigurationError: the program does not do it.
            MalformedTask: one is too large with its signature.
        """
        texts = [self._text(task) for task in tasks if task.work is None]
        values = self._signatures([pre_authentication_encoding(text) for text in texts])
        id_ = self._key.id if self._key is not None else self._settings.sign_key_id or ""
        works = (work_in(text, (Signature(id_, value),))[0] for text, value in zip(texts, values, strict=True))
        return [task if task.work else task.copied({"work": next(works)}).checked() for task in tasks]

    def _text(self, task: Task) -> str:
        work = {name: value for name, value in task.as_dict().items() if name not in STATE | BOOKKEEPING}
        since = SystemClock().wall()
        if task.not_before is not None:
            work["not_before"] = task.not_before
            since = max(since, task.not_before)
        work["not_after"] = since + self._settings.sign_for.total_seconds()
        work["audience"] = {"location": self._location, "queues": [self._queue]}
        return json.dumps(work, ensure_ascii=False, separators=(",", ":"))

    def _signatures(self, messages: list[bytes]) -> list[bytes]:
        if not messages:
            return []
        if self._key is not None:
            return [self._key.sign(message) for message in messages]
        assert self._settings.sign_command is not None
        import shlex  # noqa: PLC0415 - for those who have such a program
        import subprocess  # noqa: PLC0415 - as above

        lines = b"".join(base64.b64encode(message) + b"\n" for message in messages)
        try:
            program = shlex.split(self._settings.sign_command)
            run = subprocess.run(program, input=lines, stdout=subprocess.PIPE, timeout=_PROGRAM_SECONDS, check=False)
            values = [base64.b64decode(line, validate=True) for line in run.stdout.split()]
        except (OSError, ValueError, binascii.Error, subprocess.TimeoutExpired) as error:
            raise ConfigurationError(f"JOBQ_SIGN_COMMAND: nothing was signed: {error}") from None
        if run.returncode != 0 or len(values) != len(messages):
            raise ConfigurationError(
                f"JOBQ_SIGN_COMMAND: it ended with {run.returncode}, and with {len(values)} signatures for"
                f" {len(messages)} lines"
            )
        return values


def signer_of(backend: Backend) -> Signer | None:
    """Return what signs tasks for a queue, by the settings that it was opened with; None = nothing does.

    Raises:
        ConfigurationError: see `Signer`.
    """
    opened = origin_of(backend)
    if opened is None:
        return None
    spec, settings = opened
    if settings.sign_key_file is None and settings.sign_command is None:
        return None
    return Signer(settings, locations(settings, spec)[0], spec.queue)


def locations(settings: Settings, spec: QueueSpec | None) -> tuple[str, ...]:
    """Return what the place of a queue is called where work is signed for it; the first name is the one to sign for."""
    if settings.audience or spec is None:
        return settings.audience or ("",)
    return (_place(spec, settings),)


def _place(spec: QueueSpec, settings: Settings) -> str:
    """Return one name for one place: of a file its whole path, of a service no user, since pusher and worker differ."""
    if spec.scheme == EMBEDDED:
        return f"{EMBEDDED}:{user_home(settings).resolve()}"
    if spec.scheme == "sqlite":
        return f"sqlite://{user_path(spec.location, str(spec), resolve=True)}"
    host, slash, rest = spec.location.partition("/")
    scheme = "postgresql" if spec.scheme == "postgres" else spec.scheme
    return f"{scheme}://{host.rpartition('@')[2].lower()}{slash}{rest}"
