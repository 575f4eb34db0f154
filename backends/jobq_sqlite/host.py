"""Which machine and which boot this is: SQLite has no server clock, so its leases count from a boot (rule 1.3(10))."""

import sys
from functools import cache
from pathlib import Path
from typing import Final

from jobq.errors import ConfigurationError
from jobq.formats.lazy_dataclass import dataclass

_MACHINE_ID_FILES: Final = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"
# A jobq that counts suspends, as they did until 0.1, takes this for another boot: it and we go on by the wall clock.
_WITHOUT_SUSPENDS: Final = " without suspends"


@dataclass(frozen=True)
class BootedHost:
    """A machine and its current boot.

    Attributes:
        machine_id: empty where the system has none (minimal containers): then only the same boot is recognised.
        boot_id: random, new at each boot of the kernel; the same in all containers of one machine. With it stands what
            the boot's leases count on: its time without suspends.
    """

    machine_id: str
    boot_id: str

    def owns(self, machine_id: str, boot_id: str) -> bool:
        """Return whether a file is this machine's, by what it says of a machine and a boot."""
        is_known = bool(machine_id) and machine_id == self.machine_id
        return is_known or boot_id == self.boot_id.removesuffix(_WITHOUT_SUSPENDS)


@cache
def this_host() -> BootedHost:
    """Return the host this process runs on. Raises ConfigurationError where the kernel has no boot id."""
    if sys.platform == "darwin":
        return BootedHost(_sysctl("kern.uuid"), _sysctl("kern.bootsessionuuid") + _WITHOUT_SUSPENDS)
    boot_id = _first_line(_BOOT_ID_FILE)
    if not boot_id:
        raise ConfigurationError(f"{_BOOT_ID_FILE} cannot be read; without a boot id no lease in a file can be trusted")
    machine_id = next((line for line in map(_first_line, _MACHINE_ID_FILES) if line), "")
    return BootedHost(machine_id, boot_id + _WITHOUT_SUSPENDS)


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""  # absent on some systems; the callers say what follows from that


def _sysctl(name: str) -> str:
    import subprocess  # noqa: PLC0415 - macOS alone

    return subprocess.run(["/usr/sbin/sysctl", "-n", name], check=True, capture_output=True, text=True).stdout.strip()
