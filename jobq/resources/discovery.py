"""What there is on this machine for a worker: the least of what the machine, its control groups and its user leave.

Each step says why, for `jobq config`. Files are read below a root, so that recorded trees can be read as well.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobq.formats import sizes
from jobq.resources.gpus import found_gpus
from jobq.resources.offer import Gpu
from jobq.resources.request import UNIT, shown

ROOT: Final = Path("/")
_KEPT_BYTES: Final = 512 * 1024**2  # for the worker and the system; or
_KEPT_SHARE: Final = 0.05


@dataclass(frozen=True)
class Hardware:
    """What there is.

    Attributes:
        cpus: processors, in thousandths.
        mem: bytes that tasks may have.
        gpus: the devices.
        why: by the names of these, where each comes from.
    """

    cpus: int
    mem: int
    gpus: tuple[Gpu, ...]
    why: Mapping[str, str]


def found_cpus(root: Path = ROOT) -> tuple[int, str]:
    """Return how many processors there are, in thousandths, and why."""
    limits: list[tuple[float, str]] = []
    if allowed := _field(root / "proc/self/status", "Cpus_allowed_list"):
        limits.append((len(_numbers(allowed)), f"this process may use {allowed}"))
    files = [folder / "cpu.max" for folder in _groups(root, "")]
    limits += [(limit, _of(root, file)) for file in files if (limit := _quota(file)) is not None]
    for folder in _groups(root, "cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota and period and quota > 0:
            limits.append((quota / period, _of(root, folder / "cpu.cfs_quota_us")))
    least, why = min(limits, default=(1.0, "nothing says how many"))
    return max(1, math.floor(least)) * UNIT, why


def found_memory(root: Path = ROOT) -> tuple[int, str]:
    """Return how many bytes tasks may have, and why."""
    limits: list[tuple[float, str]] = []
    if total := _field(root / "proc/meminfo", "MemTotal"):
        limits.append((int(total.split()[0]) * 1024, "MemTotal"))
    for name, file in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        files = [folder / file for folder in _groups(root, name)]
        limits += [(limit, _of(root, each)) for each in files if (limit := _number(each)) is not None]
    least, why = min(limits, default=(0.0, "nothing says how much"))
    kept = max(_KEPT_BYTES, least * _KEPT_SHARE)
    return max(0, int(least - kept)), f"{why} is {sizes.show(int(least))}, less {sizes.show(int(kept))} for the rest"


def found_hardware(environment: Mapping[str, str], root: Path = ROOT) -> Hardware:
    """Return all that there is; takes some seconds at most, where a driver hangs.

    Args:
        environment: the worker's own: what is hidden from it is not there for its tasks either.
        root: below which /proc and /sys are.
    """
    (cpus, cpus_why), (mem, mem_why) = found_cpus(root), found_memory(root)
    gpus, gpus_why = found_gpus(environment, root)
    return Hardware(cpus, mem, gpus, {"cpus": cpus_why, "memory": mem_why, "gpus": gpus_why})


def told(hardware: Hardware) -> dict[str, str]:
    """Return what there is as texts, by the names of the worker's options."""
    gpus = ",".join(gpu.name for gpu in hardware.gpus)
    return {"cpus": shown(hardware.cpus), "memory": sizes.show(hardware.mem), "gpus": gpus or "none"}


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that hold this process, its own first; "" = of version 2."""
    base = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller not in controllers.split(","):
            continue
        names = [controllers, controller] if controller else ["", "unified"]
        for mount in (base / name for name in dict.fromkeys(names)):
            # Within a container the path may be the host's, where the mount begins with the container's own group.
            own = mount / path.strip("/")
            yield from (each for each in (own, *own.parents) if each.is_relative_to(mount) and each.is_dir())


def _quota(file: Path) -> float | None:
    words = _text(file).split()
    try:
        return int(words[0]) / int(words[1])
    except (ValueError, IndexError, ZeroDivisionError):  # not there, or "max 100000"
        return None


def _numbers(ranges: str) -> list[int]:
    """Return the numbers in a list such as `0-3,8`."""
    ends = [part.partition("-") for part in ranges.split(",") if part]
    return [number for first, _, last in ends for number in range(int(first), int(last or first) + 1)]


def _number(file: Path) -> int | None:
    try:
        return int(_text(file))
    except ValueError:  # not there, or "max"
        return None


def _field(file: Path, name: str) -> str:
    lines = dict(line.partition(":")[::2] for line in _lines(file))
    return lines.get(name, "").strip()


def _lines(file: Path) -> list[str]:
    return _text(file).splitlines()


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _of(root: Path, file: Path) -> str:
    return f"/{file.relative_to(root)}"
