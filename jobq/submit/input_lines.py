"""Task lines, which `push` reads from a file or a pipe: how they are cut, and how one becomes a task."""

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import field
from datetime import timedelta
from typing import Any, Final, Self

from jobq.errors import JobqError, MalformedTask
from jobq.formats import strict_json
from jobq.formats.lazy_dataclass import dataclass
from jobq.settings import Settings
from jobq.task import MAX_BODY_BYTES, Task

FIELDS: Final = (
    *(
        "argv",
        "budgets",
        "call",
        "command",
        "cpus",
        "cwd",
        "env",
        "gpus",
        "id",
        "kwargs",
        "mem",
        "needs",
        "not_before",
        "on_exit",
        "params",
        "priority",
        "timeout",
    ),
)
_A_BUDGET: Final = 'one of the budgets: {"budgets": {"retries": 0}}'
_MEANT: Final = {
    "args": "argv, a list with the program first",
    "cmd": "command, which is a string; a list is argv",
    "retries": _A_BUDGET,
    "num_retries": _A_BUDGET,
    "delay": "not_before, in seconds since 1970; or push --delay, for all lines",
}
_OBJECT: Final = re.compile(rb'\{\s*"')
# JSON of several tasks in a line, or of one over several lines: the shell would make nothing of it.
_OTHER_JSON: Final = re.compile(rb'\{|\[(\s*\{\s*".*)?', re.DOTALL)
_MAX_LINE_BYTES: Final = 6 * MAX_BODY_BYTES  # every character of a JSON line may be written as \uXXXX
_CHUNK_BYTES: Final = 256 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class InputUnreadable(JobqError):
    """The file of tasks cannot be read."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What the options of one `push` say about all its tasks; a JSON line may say otherwise of its own.

    Attributes:
        env, cwd, timeout, priority, budgets, on_exit, batch: fields of Task.
        cpus, gpus, mem, needs: what each asks of a machine, as `Task.new` takes them.
        by_content: a task that is given no id has one that follows from its work, so that the same is known again.
        delay: counts from when the line was read.
        trace_context: of the push; no line has its own.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    timeout: float | None = None
    priority: int | None = None
    delay: timedelta | None = None
    budgets: Mapping[str, int] = field(default_factory=dict)
    on_exit: tuple[str, ...] | None = None
    trace_context: Mapping[str, str] = field(default_factory=dict)
    by_content: bool = False
    cpus: str | None = field(default=None, repr=False)  # as of `batch`, below
    gpus: str | None = field(default=None, repr=False)
    mem: str | None = field(default=None, repr=False)
    needs: tuple[str, ...] | None = field(default=None, repr=False)
    batch: str | None = field(default=None, repr=False)  # a source says it by itself

    def task(self, **fields: Any) -> Task:
        """Return a task; raises MalformedTask."""
        common: dict[str, Any] = {"cwd": self.cwd, "timeout": self.timeout, "priority": self.priority}
        common |= {"on_exit": self.on_exit, "batch": self.batch}
        common |= {"cpus": self.cpus, "gpus": self.gpus, "mem": self.mem, "needs": self.needs}
        if self.delay is not None:
            common["not_before"] = time.time() + self.delay.total_seconds()
        merged = {name: value for name, value in common.items() if value is not None} | fields
        for name, values in (("env", self.env), ("budgets", self.budgets)):
            own = fields.get(name, {})
            merged[name] = {**values, **own} if isinstance(own, dict) else own
        task = Task.new(**merged, trace_context=dict(self.trace_context))
        if not self.by_content or "id" in fields:
            return task
        return task.copied({"id": f"c-{task.fingerprint().hex()}"})

    def task_of_line(self, line: bytes, id_: str | None = None) -> Task | None:
        """Return the task in a line, None for a blank line or a comment; raises MalformedTask.

        Args:
            line: without its end.
            id_: for a line that names none itself; None = a random one.
        """
        named = {} if id_ is None else {"id": id_}
        if len(line) > _MAX_LINE_BYTES:
            raise MalformedTask(f"the line is longer than {_MAX_LINE_BYTES} bytes")
        stripped = line.strip()
        if not stripped or stripped.startswith(b"#"):
            return None
        if _OBJECT.match(stripped):
            return self.task(**(named | _fields(stripped)))
        if _OTHER_JSON.fullmatch(stripped):
            how = "in a list; jq -c '.[]' FILE" if stripped.startswith(b"[") else "over several lines; jq -c . FILE"
            raise MalformedTask(f"JSON {how} writes one object a line")
        try:
            return self.task(command=line.decode("utf-8"), **named)
        except UnicodeDecodeError as error:
            raise MalformedTask("not UTF-8", f"byte {error.start + 1}") from None


def _fields(line: bytes) -> dict[str, Any]:
    fields = strict_json.loads(line)
    assert isinstance(fields, dict), "a line that begins with a brace is an object or no JSON"
    if isinstance(fields.get("cmd"), str) and not fields.keys() & {"command", "argv", "call"}:  # as ai4s-jobq has it
        absent = {name for name in ("bg_dirsync_to", "env", "cwd") if fields.get(name) is None}  # null there is none
        fields = {("command" if name == "cmd" else name): fields[name] for name in fields if name not in absent}
    if isinstance(fields.get("timeout"), str):
        raise MalformedTask("is a number of seconds in JSON, such as 300", "timeout")
    for name in fields:
        if name in _MEANT:
            raise MalformedTask(f"unknown field; it is {_MEANT[name]}", name)
        if name not in FIELDS:
            raise MalformedTask(f"unknown field; a line may have {', '.join(FIELDS)}", ascii(name)[1:-1][:80])
    return fields


def budgets_of(settings: Settings) -> Mapping[str, int]:
    """Return the budgets that the settings say."""
    return {
        "retries": settings.num_retries,
        "crashes": settings.max_crashes,
        "preemptions": settings.max_preemptions,
    }


class LineCutter:
    """Cuts chunks of bytes into numbered lines; LF ends a line, a CR before it goes too.

    Args:
        end: another byte that ends a line; then nothing else of it goes.
    """

    def __init__(self, end: bytes = b"\n") -> None:
        self.number = 0
        self._end = end
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """Return the lines that this chunk completes; an empty chunk is the end and completes the last one.

        A line without end comes out once it is too long, which `task_of_line` refuses.
        """
        self._rest += chunk
        *whole, rest = bytes(self._rest).split(self._end)
        if not chunk or len(rest) > _MAX_LINE_BYTES:
            whole, rest = [*whole, rest] if rest else whole, b""
        self._rest = bytearray(rest)
        return [self._numbered(line) for line in whole]

    def _numbered(self, line: bytes) -> tuple[int, bytes]:
        self.number += 1
        if self._end != b"\n":
            return self.number, line
        if self.number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return self.number, line.removesuffix(b"\r")


class Input:
    """A file, pipe or terminal that tasks are read from; a context manager.

    It is read without a thread, which could not be stopped, and without blocking the event loop on a pipe.

    Args:
        path: the file; `-` is standard input.

    Raises:
        InputUnreadable: from all methods.
    """

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        self.path = path
        self.bytes_read = 0
        self._ahead: bytes | None = None  # what `is_empty` has read
        try:
            self._descriptor = 0 if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise self._unreadable(error) from None
        self.size = status.st_size or None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._descriptor != 0:
            os.close(self._descriptor)

    async def is_empty(self) -> bool:
        """Return whether there is nothing to read at all; waits for the first bytes of a pipe."""
        while self._ahead is None:
            self._ahead = await self.read(None)
        return not self._ahead

    async def read(self, timeout: float | None) -> bytes | None:
        """Return the next bytes, empty at the end, None when there are none within `timeout` seconds."""
        if self._ahead:
            chunk, self._ahead = self._ahead, None
            return chunk
        if not await self._readable(timeout):
            return None
        try:
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:  # somebody made our standard input non-blocking
            return None
        except OSError as error:
            raise self._unreadable(error) from None
        self.bytes_read += len(chunk)
        return chunk

    async def _readable(self, timeout: float | None) -> bool:
        import asyncio  # noqa: PLC0415 - who pushes one command starts without it

        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._descriptor, ready.set)
        except PermissionError:  # epoll refuses what is always ready: a regular file, /dev/null
            await asyncio.sleep(0)
            return True
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ready.wait(), timeout)
        finally:
            loop.remove_reader(self._descriptor)
        return ready.is_set()

    def _unreadable(self, error: Exception) -> InputUnreadable:
        return InputUnreadable(f"cannot read {self.name}: {getattr(error, 'strerror', None) or error}")
