"""`python -P -m jobq.run.guardian.zygote FD MODULE...`: imports modules once and forks a task for each asking.

Internal; the guardian starts it. FD is the socket to the guardian, which `protocol` describes. It has one thread, and
no task's environment or arguments ever come into its memory (A6): those are in a letter that the task alone opens.

A task ends as Python does, but without taking the interpreter apart: it waits for its threads, calls what atexit
knows, flushes, and leaves.
"""

import atexit
import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Collection
from typing import NoReturn

from jobq.run.guardian import protocol
from jobq.run.guardian.protocol import Message, Receiver
from jobq.run.process import call_function, kernel

_LONGEST_PAUSE_SECONDS = 0.02
GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dxg")  # CUDA, ROCm, and both within Windows
_FLUSH_FAILED = 120  # what Python ends with then


class Born:
    """A task that was just forked, and the descriptors that are its own."""

    def __init__(self, parent: int, letter: int, gate: int, stdout: int, stderr: int) -> None:
        self.parent = parent
        self.letter, self.gate, self.stdout, self.stderr = letter, gate, stdout, stderr


def main(arguments: list[str]) -> NoReturn:
    """Import, report, and fork until the guardian lets go."""
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    _call_itself("jobq zygote")
    guardian, home = os.getppid(), call_function.here()
    call_function.enter(home)
    why, refusal = _import_all(arguments[1:]), "failed"
    if not why:
        why, refusal = _uses_gpu(arguments[1:]), "cold"
    if why:
        connection.sendall(protocol.encode({"op": refusal, "why": why}))
        _flush()
        os._exit(1)  # whatever threads the imports have started
    _settle(arguments[1:])
    kept = _descriptors() - {connection.fileno()}
    connection.sendall(protocol.encode({"op": "ready"}))
    born = _serve(connection)
    if born is not None:
        connection.detach()  # its number is about to be another's
        _be_a_task(born, guardian, home, kept)
    os._exit(0)


def _import_all(modules: list[str]) -> str:
    """Return why a module could not be imported; nothing when all were."""
    for name in modules:
        try:
            call_function.import_module(name)
        except call_function.NoSuchFunction as error:
            return f"{name}: {error}"
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is printed
            call_function.report(error)
            return f"{name}: {type(error).__name__}: {error}"
    return ""


def _uses_gpu(modules: list[str]) -> str:
    """Return why no fork of this process could use a GPU: an import has taken one, and its driver knows no forks."""
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - the target may be no file
            if path.startswith(GPU_DEVICES):
                return (
                    f"{path} is open once {', '.join(modules)} is imported, and what was forked then could not use a"
                    " GPU. Preload modules that only import; initialise CUDA in the function"
                )
    return ""


def _settle(modules: list[str]) -> None:
    """Make the pages that tasks share as lasting as they can be, and look whether it is safe to fork."""
    # Python 3.12 warns whenever threads run at a fork; below it is printed once, and only of those that a fork leaves.
    warnings.filterwarnings("ignore", r".*use of fork\(\) may lead to deadlocks", DeprecationWarning)
    _flush()
    gc.collect()
    gc.freeze()
    if (trial := os.fork()) == 0:
        os._exit(0)
    _wait(trial)
    threads = len(os.listdir("/proc/self/task")) - 1  # noqa: PTH208 - plain names are all that is needed
    if threads:  # a library that takes care of forks has ended its own by now
        kernel.say(
            f"{threads} threads run since {', '.join(modules)} was imported; a task forked from here may hang on a lock"
            " of theirs. Start threads in the function, not at import."
        )


def _serve(connection: socket.socket) -> Born | None:
    """Fork whatever is asked for; return in the task with what it was given, or at the end with None."""
    receiver = Receiver(connection, protocol.FORK_DESCRIPTORS)
    while True:
        while (message := receiver.next()) is None:
            try:
                if not receiver.read():
                    return None
            except ConnectionResetError:
                return None
        descriptors = receiver.take_descriptors()
        between = -1
        try:
            if protocol.LOST not in descriptors:
                between = os.fork()
        except OSError:
            between = -1
        if between == 0:
            parent = _fork_task(connection, message["id"])
            return Born(parent, *descriptors)
        protocol.close_all(descriptors)
        if between > 0:
            _wait(between)
        else:
            connection.sendall(protocol.encode({"op": "unforked", "id": message["id"]}))


def _fork_task(connection: socket.socket, number: int) -> int:
    """Fork the task, announce it and end, which makes it the guardian's child; return in the task."""
    parent = os.getpid()
    answer: Message = {"op": "unforked", "id": number}
    try:
        pid = os.fork()
        if pid == 0:
            return parent
        answer = {"op": "forked", "id": number, "pid": pid}
    except OSError:
        pass
    try:
        connection.sendall(protocol.encode(answer))
    finally:
        os._exit(0)


def _be_a_task(born: Born, guardian: int, home: str, kept: Collection[int]) -> NoReturn:
    """Arm, wait for the guardian's word, and only then read what to do (P2)."""
    arguments: list[str] = []
    stage = "program"
    try:
        _arm(born, guardian, kept)
        letter = _read(born.letter)
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (born.stdout, 1), (born.stderr, 2)):
            os.dup2(source, target)
        protocol.close_all([null, born.letter, born.stdout, born.stderr])
        if letter["cwd"] is not None:
            stage = "cwd"
            os.chdir(letter["cwd"])
            stage = "program"
        if is_shadowed(home):
            os.execve(letter["argv"][0], letter["argv"], letter["env"])  # noqa: S606 - ourselves, cold
        arguments = letter["argv"][3:]
        _take_on(arguments[0], letter["env"], home)
        os.close(born.gate)
    except OSError as error:
        os.write(born.gate, f"{stage}:{error.errno or 0}".encode("ascii"))
        os._exit(127)
    except BaseException:  # noqa: BLE001 - a child must not run on as a second zygote
        os.write(born.gate, f"{stage}:0".encode("ascii"))
        os._exit(127)
    _leave(call_function.run(arguments))


def _arm(born: Born, guardian: int, kept: Collection[int]) -> None:
    """Become the guardian's child and a leader that dies with it; return when it lets us go."""
    own = {born.letter, born.gate, born.stdout, born.stderr}
    for descriptor in _descriptors():
        if descriptor not in kept and descriptor not in own:
            os.close(descriptor)
    _call_itself("jobq task")
    pause = 0.0001
    while os.getppid() == born.parent and not select.select([born.gate], [], [], pause)[0]:
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
    os.setsid()
    kernel.become_subreaper()
    kernel.die_with_parent()
    if os.getppid() != guardian:
        _end()
    try:
        os.write(born.gate, protocol.ARMED)
        word = os.read(born.gate, 1)
    except OSError:
        word = b""
    if word != protocol.GO:
        _end()


def _end() -> NoReturn:
    """End as one that was killed: whatever the reason, it is no failure of the task (P7)."""
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(127)


def _read(letter: int) -> Message:
    size = os.fstat(letter).st_size
    data = os.pread(letter, size, 0)
    while len(data) < size:
        data += os.pread(letter, size - len(data), len(data))
    return protocol.decode(data[protocol.HEADER_BYTES :])


def is_shadowed(home: str) -> bool:
    """Return whether the working directory holds a module that a new Python would import in place of one of ours."""
    folder = call_function.here()
    if folder == home or os.environ.get("PYTHONSAFEPATH"):
        return False
    from importlib.machinery import PathFinder  # noqa: PLC0415 - only for a task with a folder of its own

    try:
        names = {entry.partition(".")[0] for entry in os.listdir(folder)}  # noqa: PTH208 - plain names are all
    except OSError:
        return False
    for name in names & sys.modules.keys():
        ours = getattr(sys.modules[name], "__spec__", None)
        if ours is None or ours.origin in {"built-in", "frozen"}:  # found before any folder is looked into
            continue
        theirs = PathFinder.find_spec(name, [folder])
        if theirs is not None and theirs.loader is not None and theirs.origin != ours.origin:
            return True
    return False


def _take_on(name: str, env: dict[str, str], home: str) -> None:
    """Be what a new Python would be: its variables, its path, its randomness, its output."""
    _call_itself(name.rpartition(":")[2])
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    call_function.enter(call_function.here(), instead_of=home)
    sys.path_importer_cache.pop(home, None)
    # Python's own `random` takes a new seed at each fork; NumPy's would give each task the same numbers.
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=os.isatty(1))


def _call_itself(name: str) -> None:
    """Have a name for `ps -o comm` and `top`, which all show as `python` otherwise."""
    file = os.open("/proc/self/comm", os.O_WRONLY)
    os.write(file, name.encode()[:15])
    os.close(file)


def _leave(code: int) -> NoReturn:
    """End as Python does."""
    try:
        if (threading := sys.modules.get("threading")) is not None:
            threading._shutdown()  # noqa: SLF001 - as multiprocessing does: waits for threads that are no daemons
        atexit._run_exitfuncs()  # noqa: SLF001 - as above
    except BaseException as error:  # noqa: BLE001 - Python only prints it, too
        call_function.report(error)
    if (failed := _flush()) is not None:
        sys.stderr.write(f"Exception ignored in: {sys.stdout!r}\n{type(failed).__name__}: {failed}\n")
        code = _FLUSH_FAILED
    if code == call_function.INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _flush() -> Exception | None:
    """Write what waits; return what standard output raised. The user may have closed it, or set it to None."""
    failed = None
    for stream in (sys.stderr, sys.stdout):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:  # noqa: BLE001 - as Python does
            failed = error
    return failed if failed is not None and sys.stderr is not None else None


def _wait(child: int) -> None:
    with contextlib.suppress(ChildProcessError):  # an import has made SIGCHLD ignored
        os.waitpid(child, 0)


def _descriptors() -> set[int]:
    """Return the open ones beyond the standard three."""
    found = {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - plain names are all that is needed
    return {number for number in found if number > 2 and _is_open(number)}  # noqa: PLR2004 - standard error


def _is_open(descriptor: int) -> bool:  # the one that listed them is closed by now
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
