"""`python -P call_function.py package.module:function [FILE]`: imports a function and calls it, as a Python task.

A program of its own that imports nothing of jobq, so that no folder of the user's can stand in its way. The file
holds its keyword arguments as a JSON object and is removed when it has been read: on a command
line every user of the machine could read them (rules.md 3, A7).

What the function prints and how it ends is the task's: exit code 1 and its traceback when it raises, without our
frames; a plain line when there is no such function.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

INTERRUPTED = -signal.SIGINT
NO_JSON = "it is not JSON:"  # a result that begins so says why there is none
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - each import costs every such task


class NoSuchFunction(Exception):
    """The task names a function that is not there; the message says what is missing."""


def run(arguments: list[str]) -> int:
    """Call the function and return the exit code that Python would end with; INTERRUPTED stands for SIGINT.

    Args:
        arguments: the function's name, and the path of its arguments if it has any.
    """
    sys.argv = arguments[:1]
    place = os.environ.get("JOBQ_RESULT_FILE", "")  # the function may clear its environment
    try:
        kwargs = _taken(arguments[1]) if arguments[1:] else {}
        result = function_named(arguments[0])(**kwargs)
        if isinstance(result, Coroutine):
            import asyncio  # noqa: PLC0415 - 30 ms that few pay

            result = asyncio.run(result)
        keep(result, place)
    except NoSuchFunction as error:
        sys.stderr.write(f"jobq: {error}\n")
    except SystemExit as error:
        return exit_code_of(error.code)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the task's
        report(error)
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED
    else:
        return 0
    return 1


def _taken(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:  # noqa: PTH123 - each import costs every such task
        text = file.read()
    os.unlink(path)  # noqa: PTH108 - as above
    return json.loads(text)  # type: ignore[no-any-return] # jobq wrote it


def keep(result: object, path: str) -> None:
    """Write what the function returned to where commands write their results, unless it has written one itself."""
    if result is None or not path:
        return
    try:
        text = json.dumps(result)
    except Exception as error:  # noqa: BLE001 - classes of the user's are asked for their items, and may raise anything
        text = why_no_json(result, error)
        sys.stderr.write(f"jobq: the result is not kept: {text}\n")  # and the worker logs and counts it
    try:
        with open(path, "x", encoding="utf-8") as file:  # noqa: PTH123 - each import costs every such task
            file.write(text)
    except FileExistsError:
        pass
    except OSError as error:
        sys.stderr.write(f"jobq: the result was not written: {error}\n")


def why_no_json(value: object, error: Exception) -> str:
    """Return why a result cannot be written as JSON, with its type."""
    return f"{NO_JSON} a {type(value).__name__} ({type(error).__name__})"


def report(error: BaseException) -> None:
    """Show an error as Python does, without the frames that led to the user's code."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OURS):
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    try:
        sys.excepthook(type(error), error, traceback)
    except Exception:  # noqa: BLE001 - the user's own hook
        sys.__excepthook__(type(error), error, traceback)


def import_module(name: str) -> Any:
    """Return a module; raises NoSuchFunction when there is none, and whatever it raises itself."""
    try:
        __import__(name)  # not importlib: only this one leaves its own frames out of a traceback
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise NoSuchFunction(f"there is no module {missing!r}{_searched(missing)}") from None
        raise
    return sys.modules[name]


def enter(folder: str) -> None:
    """Let imports look into a folder first, as `python -m` does with the current one.

    Args:
        folder: where the task runs.
    """
    if not os.environ.get("PYTHONSAFEPATH"):  # the user wants it; -P, which this program itself is run with, is ours
        sys.path.insert(0, folder)


def function_named(name: str) -> Callable[..., object]:
    """Return the function `package.module:function`; raises NoSuchFunction, and whatever the import raises."""
    module, _, path = name.partition(":")
    found = import_module(module)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NoSuchFunction(f"module {module!r} has no {path!r} ({_home_of(module)})") from None
    if not callable(found):
        raise NoSuchFunction(f"{name!r} is no function ({_home_of(module)})")
    return found  # type: ignore[no-any-return] # just checked


def here() -> str:
    """Return the working directory, also of a process whose own was removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - pathlib costs 5 ms
    except FileNotFoundError:
        return "/"


def _home_of(module: str) -> str:
    return f"found {getattr(sys.modules[module], '__file__', None) or 'without a file'}"


def _searched(missing: str) -> str:
    if "." in missing:
        return f" ({_home_of(missing.rpartition('.')[0])})"
    return f"; searched {here()}, PYTHONPATH and the packages of {sys.executable}"


def exit_code_of(code: object) -> int:
    """Return what Python would end with for `SystemExit(code)`; prints what it would print."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def main() -> None:
    """Run in a process of its own."""
    enter(here())
    leave(run([os.fsencode(sys.argv[1]).decode("utf-8", "surrogateescape"), *sys.argv[2:]]))


def leave(code: int) -> NoReturn:
    """End as Python ends with an exit code, or by SIGINT for INTERRUPTED."""
    if code == INTERRUPTED:  # printed already; Python ends itself by the signal
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt
    sys.exit(code)


if __name__ == "__main__":
    main()
