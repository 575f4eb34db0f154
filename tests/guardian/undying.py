"""Processes that SIGKILL does not end until the test says so: the kernel holds each at its exit for a tracer."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SEIZE: Final = 0x4206
_CONT: Final = 7
_TRACE_EXIT: Final = 0x40
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


@contextmanager
def undying(pid: int) -> Iterator[None]:
    """Keep a process from ending within; call it and leave it on one thread. It is let go at the end."""
    _ptrace(_SEIZE, pid, _TRACE_EXIT)
    try:
        yield
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, os.WUNTRACED)  # it has come to its exit
        _ptrace(_CONT, pid, 0)
        os.waitpid(pid, 0)  # as its tracer; then its parent hears of it


def _ptrace(request: int, pid: int, data: int) -> None:
    if _LIBC.ptrace(request, pid, None, data):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
