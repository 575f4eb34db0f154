"""Remove a folder whatever a task has made of it: folders as deep as it likes, ones that nobody may enter, links."""

import os
import secrets
import stat
import threading
from contextlib import suppress
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Remove a folder and all below it, as far as this user may; what stays is no error, and no link is followed.

    Not by recursion, as `shutil.rmtree` does it: a task that makes a thousand folders in each other would fail who
    tidies up behind it (L4). Folders are moved up to the top instead, so no path grows long and few are open at once.
    """
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    stuck: set[str] = set()
    try:
        while names := set(os.listdir(top)) - stuck:  # noqa: PTH208 - of a descriptor
            stuck |= {name for name in names if not _removed(top, name)}
    except OSError:  # an I/O error, or the folder has gone meanwhile
        pass
    finally:
        os.close(top)
    with suppress(OSError):
        folder.rmdir()


def remove_beside(folder: Path) -> None:
    """Remove a folder on a thread that holds up no end: a million files in it are no reason to lose a lease (S11).

    Where the machine has no thread left, it stays until the folder that holds it is removed.
    """
    with suppress(RuntimeError):  # of Thread.start
        threading.Thread(target=remove_tree, args=(folder,), name="removal", daemon=True).start()


def _removed(top: int, name: str) -> bool:
    """Remove one entry of the top folder, after what it holds was removed or moved up; return whether it worked."""
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=top)
            return True
        inside = _entered(top, name)
        try:
            for entry in os.listdir(inside):  # noqa: PTH208 - as above
                _take_out(inside, entry, top)
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=top)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _take_out(inside: int, entry: str, top: int) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(entry, dir_fd=inside, follow_symlinks=False).st_mode):
            os.close(_entered(inside, entry))  # to move a folder takes the right to write into it
            os.rename(entry, f"{secrets.token_hex(8)}.removed", src_dir_fd=inside, dst_dir_fd=top)
        else:
            os.unlink(entry, dir_fd=inside)


def _entered(parent: int, name: str) -> int:
    with suppress(OSError):
        if os.geteuid() != 0:  # root needs no permission, and the name may be a link to anything by now
            os.chmod(name, stat.S_IRWXU, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
