"""A work specification that says what the process is in which it is read: what a call finds, forked or cold."""

import json
import locale
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_LIMITS: Final = 16


def tasks() -> Iterator[str]:
    Path(os.environ["PROBE"]).write_text(json.dumps({"own": _own(), "same": _same()}))
    yield "true"


def _own() -> dict[str, Any]:
    """Return what is another in each process."""
    return {
        "command line": Path("/proc/self/cmdline").read_text(),
        "parent": os.getppid(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "random": random.random(),
    }


def _same() -> dict[str, Any]:
    """Return what a forked process and a cold one must have in common."""
    streams = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
    return {
        "arguments": [sys.argv, sys.orig_argv],
        "caches": [
            [name, attribute]
            for name, module in sorted(sys.modules.items())
            if name.startswith("jobq")
            for attribute, value in vars(module).items()
            if hasattr(value, "cache_info") and value.cache_info().currsize
        ],
        "command name": Path("/proc/self/comm").read_text(),
        "descriptors": sorted(map(_shown, Path("/proc/self/fd").iterdir())),
        "encodings": [sys.getfilesystemencoding(), locale.getpreferredencoding(False), locale.setlocale(locale.LC_ALL)],
        "environment": sorted(os.environ.items()),
        "flags": str(sys.flags),
        "folder": str(Path.cwd()),
        "leads a group": os.getpgid(0) == os.getpid(),
        "limits": [resource.getrlimit(number) for number in range(_LIMITS)],
        "main": str(getattr(sys.modules["__main__"].__spec__, "name", None)),
        "niceness": os.nice(0),
        "path": sys.path,
        "signals": sorted((int(number), _handler(number)) for number in signal.valid_signals()),
        "signals blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "streams": [_stream(stream) for stream in streams],
        "threads": [thread.name for thread in threading.enumerate()],
        "time zone": time.tzname,
        "umask": os.umask(0o22),
        "warnings": sys.warnoptions,
    }


def _shown(descriptor: Path) -> str:
    try:
        kind = str(descriptor.readlink()).split(":")[0]
        return f"{descriptor.name} {kind} {os.get_inheritable(int(descriptor.name))}"
    except OSError:  # the one that listed them
        return ""


def _handler(number: int) -> str:
    found = signal.getsignal(number)
    return getattr(found, "__qualname__", str(found))


def _stream(stream: Any) -> list[str] | None:
    names = ("name", "mode", "encoding", "errors", "newlines", "line_buffering", "write_through", "closed")
    return None if stream is None else [str(getattr(stream, name)) for name in names]
