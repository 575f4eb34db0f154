"""What all commands share for printing: one place for colour, for untrusted text, for standard output and errors.

Standard output carries data, standard error everything else. Text that came out of a queue may hold anything, so
`put` and `say` make each line `visible`; only `put_text` does not.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from jobq.cli.display.queue_name import to_copy
from jobq.cli.display.writer_thread import WriterThread, reader_has_gone
from jobq.formats.visible_text import visible as visible  # noqa: PLC0414 - what nearly all who print need

if TYPE_CHECKING:
    from logging import LogRecord


class Verbosity(IntEnum):
    """How much is printed on standard error: `--quiet`, neither, `--verbose`."""

    QUIET = -1
    NORMAL = 0
    VERBOSE = 1


_verbosity = Verbosity.NORMAL
_apart: TextIO | None = None  # where data goes while descriptor 1 is a stranger's
_threads: dict[int, WriterThread] = {}  # that write while what runs must not wait for a reader, by descriptor
_LAST_SECONDS: Final = 2.0
_ROWS: Final = 3
_RED: Final = "31"
_YELLOW: Final = "33"


def prepare_streams() -> None:
    """Make printing unable to fail on a character, and a closed standard stream harmless."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:  # closed by the caller: the next file to be opened must not become somebody's standard output
            os.open(os.devnull, os.O_RDWR if descriptor else os.O_WRONLY)  # what reads it is an error, no empty input
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - lives as long as the process


def discard_stdout() -> None:
    """Send what is still buffered nowhere: the reader of standard output has gone."""
    _discard(_apart.fileno() if _apart is not None else 1)


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def verbosity() -> Verbosity:
    """Return how much is to be printed."""
    return _verbosity


def set_verbosity(value: Verbosity) -> None:
    """Decide how much is printed from now on, by this whole process."""
    global _verbosity  # noqa: PLW0603 - one command line, one standard error
    _verbosity = value


def uses_color(stream: TextIO) -> bool:
    """Return whether to colour: NO_COLOR wins over FORCE_COLOR, which wins over what the stream is."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, code: str, stream: TextIO) -> str:
    """Return the text in an SGR colour, where the stream takes one."""
    return f"\x1b[{code}m{text}\x1b[0m" if uses_color(stream) else text


class OutputGone(Exception):
    """Standard output cannot be written: its reader has gone, or its disk is full.

    Args:
        error: what the system said.

    Attributes:
        is_fault: whether data is lost that somebody would have read.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(cannot_write(error))
        self.is_fault = not reader_has_gone(error, 1 if _apart is None else _apart.fileno())


def cannot_write(error: OSError) -> str:
    """Return what to print of standard output that cannot be written."""
    return f"cannot write to standard output: {error.strerror or error}"


def _data() -> TextIO:
    return _apart or sys.stdout


@contextmanager
def data_apart() -> Iterator[None]:
    """Keep standard output for what is `put`: what a stranger's code prints meanwhile goes to standard error."""
    global _apart  # noqa: PLW0603 - one process, one standard output
    flush()
    kept = os.dup(1)  # not inherited by what the stranger starts
    os.dup2(2, 1)
    _apart = open(kept, "w", encoding=sys.stdout.encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115 - closed below
    try:
        yield
        flush()
    finally:
        with suppress(OSError):
            sys.stdout.flush()  # theirs
        with suppress(OSError):
            _apart.close()
        _apart = None
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def by_thread() -> Iterator[None]:
    """Have a thread write all lines, for what holds leases or answers others: no reader may stop its event loop.

    When too many lines wait, new ones are dropped and counted. Output that cannot be written raises nothing.
    """
    flush()
    said = b"jobq: warning: %d lines were dropped: their reader is too slow\n"
    err = WriterThread(lambda count: (2, said % count))
    # Two, so that who does not read the one hides nothing of the other; one where order counts.
    out = err if os.path.sameopenfile(1, 2) else WriterThread(lambda count: (1, said % count))
    _threads.update({1: out, 2: err})
    for writer in {out, err}:
        writer.start()
    import logging  # noqa: PLC0415 - a start must not pay for it

    class Unheard(logging.Handler):
        """What no handler of ours takes, such as asyncio's own words."""

        def emit(self, record: "LogRecord") -> None:
            say_record(record)

    former, logging.lastResort = logging.lastResort, Unheard(logging.WARNING)
    try:
        yield
    finally:
        logging.lastResort = former
        _threads.clear()
        for descriptor, writer in ((1, out), (2, err)):
            if writer.stop(_LAST_SECONDS):  # nobody reads: the last words must not wait for ever, either
                _discard(descriptor)


def put(line: str) -> None:
    """Write a line of data, whoever it comes from, to standard output; raises OutputGone."""
    put_text(visible(line))


def put_text(text: str) -> None:
    """Write a text of jobq's own, with its colours and lines, to standard output; raises OutputGone."""
    if (writer := _threads.get(1)) is not None:
        writer.put(1, _encoded(text))
        return
    try:
        print(text, file=_data())
    except OSError as error:
        raise OutputGone(error) from error


def width() -> int:
    """Return the columns of the terminal that data goes to; 0 = it goes elsewhere."""
    if not _data().isatty():
        return 0
    import shutil  # noqa: PLC0415 - a start must not pay for it

    return shutil.get_terminal_size().columns


def fitted(line: str, *, full: bool = False) -> str:
    """Return a line of data that takes three rows of a terminal at most, unless all is wanted."""
    return line if full or not width() else shortened(line, _ROWS * width())


def flush() -> None:
    """Bring what was put to the reader now; raises OutputGone."""
    try:
        _data().flush()
    except OSError as error:
        raise OutputGone(error) from error


def leave(exit_code: int) -> NoReturn:
    """End the process now, with all that was printed, and without waiting for threads."""
    with suppress(OutputGone):
        flush()
    os._exit(exit_code)


def put_json(value: Any) -> None:
    """Write one JSON object, on one line, to standard output; pure ASCII, so any locale and terminal takes it."""
    put_text(json.dumps(value))


def put_report(values: Iterable[Any], exit_code: int) -> int:
    """Write the JSON objects that say what a command has done; return its exit code, 1 for a success nobody can read.

    A reader that has gone changes nothing: what is done is done, and the exit code says it.
    """
    try:
        for value in values:
            put_json(value)
        flush()
    except OutputGone as gone:
        discard_stdout()
        if gone.is_fault:
            complain(str(gone))
            return exit_code or 1
    return exit_code


def say(text: str, *, is_error: bool = False) -> None:
    """Write a line for people to standard error; `--quiet` keeps it back unless it is (part of) an error."""
    if is_error or _verbosity > Verbosity.QUIET:
        _put_aside(visible(to_copy(text)))


def say_record(record: "LogRecord") -> None:
    """Write a record of Python's logging, with its traceback, to standard error."""
    text = f"{record.levelname} {record.getMessage()}"
    if record.exc_info:
        import traceback  # noqa: PLC0415 - a fault is rare

        text += "\n" + "".join(traceback.format_exception(*record.exc_info))
    for line in text.rstrip().split("\n"):
        say(line, is_error=True)


def complain(text: str, *, hint: str = "") -> None:
    """Write an error as one plain line to standard error, and where to read on."""
    _put_aside(f"{paint('jobq:', _RED, sys.stderr)} {visible(to_copy(text))}")
    if hint:
        say(hint, is_error=True)


def warn(text: str) -> None:
    """Write a warning as one plain line to standard error."""
    if _verbosity > Verbosity.QUIET:
        _put_aside(f"{paint('jobq: warning:', _YELLOW, sys.stderr)} {visible(text)}")


def fail(name: str, message: str, exit_code: int, *, as_json: bool, topic: str = "", **more: Any) -> int:
    """Write an error to standard error, as one plain line or as a JSON object with more fields; return the code.

    Args:
        name: of the error.
        message: for people.
        exit_code: is returned.
        as_json: as an object.
        topic: for `jobq help`; empty where there is none.
        more: fields of the object.
    """
    if as_json:
        more = {**more, "topic": topic} if topic else more
        _put_aside(json.dumps({"error": name, "message": to_copy(message), "exit_code": exit_code, **more}))
    else:
        complain(message, hint=f"More: jobq help {topic}" if topic else "")
    return exit_code


def not_found(message: str, *, as_json: bool, **more: Any) -> int:
    """Likewise, of what a command was to show or change and is not there."""
    return fail("NotFound", message, 4, as_json=as_json, **more)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _put_aside(line: str) -> None:
    if (writer := _threads.get(2)) is not None:
        writer.put(2, _encoded(line), important=True)
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:  # the terminal has gone, or its disk is full: nobody is left to read it, and the work counts
        _discard(2)  # else Python would try again at its end, and end with a code of its own


def confirmed(question: str) -> bool:
    """Ask on the terminal; anything but yes means no."""
    print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def has_terminal_input() -> bool:
    """Return whether somebody could answer a question, or type tasks."""
    return sys.stdin is not None and sys.stdin.isatty()


def shortened(text: str, width: int) -> str:
    """Return at most `width` characters."""
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."
