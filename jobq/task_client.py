"""For programs that jobq runs as tasks: `jobq.checkpoint("epoch 3")`, `jobq.progress(0.4, "epoch 3")`.

They speak with the task's worker over a socket that JOBQ_TASK_SOCKET names (TOKEN@PATH), so a task needs no right on
the queue. One connection, one line of JSON each way. Imports nothing but the standard library.
"""

import json
import os
import socket
from typing import Any, Final

from jobq import errors
from jobq.errors import BackendUnavailable, ConfigurationError, JobqError

# A command gets its checkpoint as an environment variable, and the kernel takes 128 KiB for one.
MAX_CHECKPOINT_BYTES: Final = 64 * 1024
SOCKET_VARIABLE: Final = "JOBQ_TASK_SOCKET"
MAX_LINE_BYTES: Final = 1024 * 1024
ANSWER_SECONDS: Final = 60.0  # a checkpoint waits for its turn behind a renewal
FOLDER_SECONDS: Final = 1260.0  # two saves: this one, and one before it


def checkpoint(value: str) -> None:
    """Durably save the task's progress; the next attempt, on any machine, finds it as JOBQ_CHECKPOINT (S9).

    Args:
        value: text of at most 64 KiB; for more, save where it is.

    Raises:
        ConfigurationError: this is no task of jobq, or the value is none that can be saved.
        LockLost: the task has lost its lease; nothing was saved, and nothing that it does counts any more.
        SettlementUnknown: no answer came; saving again is safe.
        BackendUnavailable: it was not saved; saving again is safe.
    """
    _ask(op="checkpoint", value=value)


def checkpoint_directory() -> None:
    """Durably save the files in the folder that JOBQ_CHECKPOINT_DIR names; the next attempt finds them there (S9).

    Raises:
        ConfigurationError: this is no task of jobq, its worker keeps no files, or they are none that can be kept.
        LockLost, SettlementUnknown, BackendUnavailable: as `checkpoint`; what was saved before counts.
    """
    _ask(seconds=FOLDER_SECONDS, op="checkpoint folder")


def progress(share: float | None, text: str = "") -> None:
    """Report how far the task has come; `jobq QUEUE ps` shows it after the next heartbeat.

    Args:
        share: from 0 to 1; None = unknown.
        text: what it does, at most 200 characters.

    Raises:
        ConfigurationError: this is no task of jobq, or the share is none.
    """
    _ask(op="progress", share=share, text=text)


def _ask(*, seconds: float = ANSWER_SECONDS, **question: Any) -> None:
    token, at, path = os.environ.get(SOCKET_VARIABLE, "").partition("@")
    if not at:
        raise ConfigurationError(f"this is not run by a jobq worker: there is no {SOCKET_VARIABLE}")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(path)
            connection.sendall(json.dumps({"token": token, **question}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline(MAX_LINE_BYTES) or b"null")
    except (OSError, ValueError) as error:
        raise BackendUnavailable(f"the worker of this task does not answer: {error}") from None
    if answer is None:
        raise BackendUnavailable("the worker of this task has hung up")
    if "error" in answer:
        kind = getattr(errors, str(answer["error"]), JobqError)
        raise kind(str(answer["text"]))


def checked_checkpoint(value: str) -> str:
    """Return the value; raises TypeError or ValueError for one that the next attempt could not be given."""
    if not isinstance(value, str):
        raise TypeError(f"a checkpoint is text, not {type(value).__name__}; json.dumps makes text of most things")
    if value.startswith("\x1d"):
        raise ValueError("a checkpoint does not begin with the control character U+001D, which jobq uses itself")
    if "\0" in value:
        raise ValueError("a checkpoint holds no NUL: an environment variable could not")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError("a checkpoint holds no lone surrogates: UTF-8 could not") from None
    if size > MAX_CHECKPOINT_BYTES:
        raise ValueError(f"a checkpoint of {size} bytes, at most {MAX_CHECKPOINT_BYTES} fit; save where the data is")
    return value
