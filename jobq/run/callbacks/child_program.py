"""`python -P child_program.py`: calls one plain callback of a program that embeds jobq, in a process of its own.

Internal; `jobq.run.callbacks.process_runner` starts it. JOBQ_CALLBACK_SOCKET names the worker's Unix socket. Both sides
write JSON, one object a line. The worker speaks first, once (the letter); afterwards it answers questions, one each:

    letter  {"path": sys.path, "function": "module:qualname" | null, "pickled": base64 | null, "kwargs": {...},
             "context": null | {"id": ..., "attempt": ..., "fencing": [epoch, generation, delivery], "checkpoint": ...}}
    {"op": "lease"}                         {"remaining": seconds, "lost": bool}
    {"op": "checkpoint", "value": text}     {}
    {"op": "returned", "json": text}        {}       what it returned as JSON, or ...
    {"op": "returned", "lost": text}        {}       ... why that is no value
    {"op": "raised", "type": name}          {}
    any of them                             {"error": name in jobq.errors, "text": ...}

It imports nothing of jobq before it has the path that the program has, and nothing heavy after.
"""

import base64
import json
import os
import pickle
import queue
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

SOCKET_VARIABLE = "JOBQ_CALLBACK_SOCKET"
MAX_LINE_BYTES = 1024 * 1024  # of what is said to the worker: a returned value, above all


class WorkerChannel:
    """The connection to the worker; any thread of this process may ask, and so may a signal handler at any moment.

    Once `share` was called one thread alone speaks, so that an exception or another question that comes while an answer
    is awaited cannot put questions and answers out of step.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb")
        self._questions: queue.SimpleQueue[tuple[bytes, queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        self._is_shared = False
        self._process = os.getpid()

    def receive(self) -> dict[str, Any]:
        """Return the next object; raises ConnectionError when the worker has gone."""
        text = self._file.readline()
        if not text.endswith(b"\n"):
            raise ConnectionError("jobq: the worker is gone")
        received: dict[str, Any] = json.loads(text)
        return received

    def share(self) -> None:
        """Let anyone ask from now on."""
        threading.Thread(target=self._speak, name="jobq", daemon=True).start()
        self._is_shared = True

    def _speak(self) -> None:
        while True:
            text, reply = self._questions.get()
            try:
                reply.put(self._exchange(text))
            except Exception as error:  # noqa: BLE001 - raised by who asked
                reply.put(error)

    def _asked(self, text: bytes) -> Any:
        reply: queue.SimpleQueue[Any] = queue.SimpleQueue()  # whose methods a signal handler may call in their midst
        self._questions.put((text, reply))
        return reply.get()

    def _exchange(self, text: bytes) -> dict[str, Any]:
        self._socket.sendall(text)
        return self.receive()

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send an object and return its answer; raises what the worker answers, as its own error."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "`delivery` can only be used in the process that was called with it, not in its children"
            )
        text = json.dumps(message, allow_nan=False).encode() + b"\n"
        if len(text) > MAX_LINE_BYTES:
            raise ValueError(f"{len(text)} bytes of JSON, at most {MAX_LINE_BYTES} fit")
        answer = self._asked(text) if self._is_shared else self._exchange(text)
        if isinstance(answer, Exception):
            raise answer
        if "error" in answer:
            from jobq import errors  # noqa: PLC0415 - found on the program's path only

            raise getattr(errors, answer["error"])(answer["text"])
        return answer

    def save_checkpoint(self, value: str) -> None:
        """As `jobq.run.callbacks.sync_task_context.Link` says."""
        self.ask({"op": "checkpoint", "value": value})

    def lease(self) -> tuple[float, bool]:
        """As `jobq.run.callbacks.sync_task_context.Link` says."""
        answer = self.ask({"op": "lease"})
        return answer["remaining"], answer["lost"]


def run(line: WorkerChannel, letter: dict[str, Any]) -> int:
    """Call the function and return the exit code to end with."""
    from jobq.run.process import call_function  # noqa: PLC0415 - as above

    try:
        function = _function_in(letter)
        result = function(**_arguments_in(letter, line))
        if isinstance(result, Coroutine):
            import asyncio  # noqa: PLC0415 - 30 ms that few pay

            result = asyncio.run(result)
    except call_function.NoSuchFunction as error:
        sys.stderr.write(f"jobq: {error}\n")
    except SystemExit as error:
        code = call_function.exit_code_of(error.code)
        return code or _send_value(line, None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the task's
        call_function.report(error)
        if isinstance(error, KeyboardInterrupt):
            return call_function.INTERRUPTED
        line.ask({"op": "raised", "type": type(error).__name__})
    else:
        return _send_value(line, result)
    return 1


def _send_value(line: WorkerChannel, value: object) -> int:
    """Say what the callback returned, and return the exit code to end with; one that is no JSON has not failed."""
    try:
        line.ask({"op": "returned", "json": json.dumps(value)})
    except Exception as error:  # noqa: BLE001 - classes of the user's are asked for their items, and may raise anything
        sys.stderr.write(f"jobq: what the callback returned is no value for a task, and is not kept: {error}\n")
        from jobq.run.process import call_function  # noqa: PLC0415 - as above

        line.ask({"op": "returned", "lost": call_function.why_no_json(value, error)})
    return 0


def _function_in(letter: dict[str, Any]) -> Callable[..., Any]:
    if letter["function"] is not None:
        from jobq.run.process import call_function  # noqa: PLC0415 - as above

        return call_function.function_named(letter["function"])
    function: Callable[..., Any] = pickle.loads(base64.b64decode(letter["pickled"]))  # noqa: S301 - our worker's own
    return function


def _arguments_in(letter: dict[str, Any], line: WorkerChannel) -> dict[str, Any]:
    kwargs: dict[str, Any] = letter["kwargs"]
    if (known := letter["context"]) is not None:
        from jobq.fencing import FencingNumber  # noqa: PLC0415 - as above
        from jobq.run.callbacks.sync_task_context import SyncTaskContext  # noqa: PLC0415 - as above

        line.share()
        kwargs["delivery"] = SyncTaskContext(
            task_id=known["id"],
            attempt=known["attempt"],
            fencing_number=FencingNumber(*known["fencing"]),
            checkpoint=known["checkpoint"],
            link=line,
        )
    return kwargs


def main() -> None:
    """Run in a process of its own."""
    line = WorkerChannel(os.environ.pop(SOCKET_VARIABLE))
    letter = line.receive()
    sys.path[:] = letter["path"]
    sys.argv = [letter["function"] or "callback"]
    code = run(line, letter)
    from jobq.run.process import call_function  # noqa: PLC0415 - as above

    call_function.leave(code)


if __name__ == "__main__":
    main()
