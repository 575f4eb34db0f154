"""Which GPUs there are, asked of what knows in a child process of two seconds at most, since a sick driver hangs."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from jobq.resources.offer import Gpu

ANSWER_SECONDS: Final = 2.0
_MOST_BYTES: Final = 1024 * 1024
_CARD: Final = re.compile(r"GPU (\d+): .*\(UUID: GPU-[0-9a-fA-F-]+\)")
_PART: Final = re.compile(r"\s+MIG .*\(UUID: (MIG-[0-9a-zA-Z/-]+)\)")
# Says the same as `nvidia-smi -L`; functions of nvidia-ml-py.
_ASK_NVML: Final = """
import pynvml as n
n.nvmlInit()
for index in range(n.nvmlDeviceGetCount()):
    card = n.nvmlDeviceGetHandleByIndex(index)
    print(f"GPU {index}: card (UUID: {n.nvmlDeviceGetUUID(card)})")
    try:
        parts = n.nvmlDeviceGetMaxMigDeviceCount(card) if n.nvmlDeviceGetMigMode(card)[0] else 0
    except n.NVMLError:
        parts = 0
    for number in range(parts):
        try:
            part = n.nvmlDeviceGetMigDeviceHandleByIndex(card, number)
        except n.NVMLError:
            continue
        print(f"  MIG part (UUID: {n.nvmlDeviceGetUUID(part)})")
"""


def found_gpus(environment: Mapping[str, str], root: Path) -> tuple[tuple[Gpu, ...], str]:
    """Return the devices, and who says so.

    Args:
        environment: the worker's own; what it hides from the worker is not there.
        root: below which /proc and /sys are.
    """
    makers: tuple[tuple[str, Literal["nvidia", "amd"]], ...]
    makers = (("CUDA_VISIBLE_DEVICES", "nvidia"), ("ROCR_VISIBLE_DEVICES", "amd"))
    for name, maker in makers:
        if name in environment:
            return named_gpus(_visible(environment[name]), maker), f"{name} is {environment[name]!r}"
    silent = []
    for who, argv in _asked(environment):
        said = answer(argv, environment)
        if (found := None if said is None else _told(said)) is not None:
            return found, who
        silent.append(who)
    silence = f" ({' and '.join(silent)} had no answer)" if silent else ""
    if cards := len(list(root.glob("proc/driver/nvidia/gpus/*"))):
        return named_gpus([str(number) for number in range(cards)]), f"/proc/driver/nvidia/gpus{silence}"
    if cards := sum(_is_amd(each) for each in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")):
        return named_gpus([str(number) for number in range(cards)], "amd"), f"/sys/class/kfd{silence}"
    return (), f"none were found{silence}"


def named_gpus(names: Sequence[str], maker: Literal["nvidia", "amd"] = "nvidia") -> tuple[Gpu, ...]:
    """Return devices by their names, each once."""
    return tuple(Gpu(name, maker, is_part=name.startswith("MIG-")) for name in dict.fromkeys(names))


def answer(argv: Sequence[str], environment: Mapping[str, str], seconds: float = ANSWER_SECONDS) -> str | None:
    """Return what a program prints; None = it failed, or had not ended in time.

    It is not waited for then: what hangs in a driver does not even die of SIGKILL.
    """
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL
            )
        except OSError:
            return None
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.returncode = -1  # nobody waits for it any more; else its destructor would complain
            return None
        output.seek(0)
        return output.read(_MOST_BYTES).decode(errors="replace") if code == 0 else None


def _asked(environment: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    asked = []
    if importlib.util.find_spec("pynvml") is not None:
        asked.append(("NVML", [sys.executable, "-P", "-c", _ASK_NVML]))
    if (program := shutil.which("nvidia-smi", path=environment.get("PATH"))) is not None:
        asked.append(("nvidia-smi", [program, "-L"]))
    return asked


def _told(said: str) -> tuple[Gpu, ...] | None:
    """Return the devices in such a list; None = it is none. A card that is cut into parts is these."""
    found: list[Gpu] = []
    for line in said.splitlines():
        if (card := _CARD.fullmatch(line.rstrip())) is not None:
            found.append(Gpu(card[1]))
        elif (part := _PART.fullmatch(line.rstrip())) is not None and found:
            if not found[-1].is_part:
                found.pop()
            found.append(Gpu(part[1], is_part=True))
        elif line.strip():
            return None
    return tuple(found)


def _visible(value: str) -> list[str]:
    """Return the names in such a variable; as CUDA has it, one that is none hides those behind it."""
    names: list[str] = []
    for name in value.split(","):
        if not re.fullmatch(r"\d+|(GPU|MIG)-[0-9a-zA-Z/-]+", name.strip()):
            break
        names.append(name.strip())
    return names


def _is_amd(properties: Path) -> bool:
    try:
        lines = dict(line.partition(" ")[::2] for line in properties.read_text().splitlines())
    except OSError:  # of a card that a container may not use
        return False
    return int(lines.get("simd_count", "0")) > 0
