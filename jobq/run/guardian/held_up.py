"""A worker that was stopped while it holds a database's lock, and so holds up all other workers of that file."""

# SQLite's locks are ranges of bytes: of the log's index, for who writes the log, moves it into the file or mends it
# (https://www.sqlite.org/walformat.html), and of the file itself (https://www.sqlite.org/fileio.html).
_BYTES = (*range(120, 123), 0x40000000, 0x40000001)
_WORDS = 8  # of a line in /proc/locks (proc_locks(5))


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal; one that a debugger holds is not (proc_pid_stat(5))."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs 1 MB
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False  # it ended while we looked


def holds_lock(pid: int) -> bool:
    """Return whether a process holds a lock of SQLite's that keeps others from writing."""
    try:
        with open("/proc/locks", encoding="ascii") as file:  # noqa: PTH123 - as above
            lines = [line.split() for line in file]
    except OSError:
        return False  # this kernel does not say
    return any(
        len(words) == _WORDS
        and words[1:4] == ["POSIX", "ADVISORY", "WRITE"]
        and words[4] == str(pid)
        and int(words[6]) in _BYTES
        for words in lines
    )
