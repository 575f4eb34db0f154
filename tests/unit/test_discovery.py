"""What a worker finds on its machine: recorded trees of /proc and /sys, programs that answer, hang or talk nonsense."""

import sys
import time
from pathlib import Path

import pytest

from jobq.resources import gpus
from jobq.resources.discovery import found_cpus, found_hardware, found_memory, told
from jobq.resources.gpus import found_gpus

GIB = 1024**3
MEMINFO = "MemTotal:       65536000 kB\nMemFree:        1 kB\n"
LIST = (
    "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\n"
    "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-d1d2ba47-79a5-4aa9-0d4d-1f7f3a2b8a78)\n"
)
MIG = (
    "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\n"
    "  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)\n"
    "  MIG 1g.5gb      Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)\n"
    "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-d1d2ba47-79a5-4aa9-0d4d-1f7f3a2b8a78)\n"
)


def tree(folder: Path, files: dict[str, str]) -> Path:
    files = {"proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-15,32-47\n", "proc/meminfo": MEMINFO} | files
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/user\n"}


@pytest.mark.parametrize(
    ("files", "cpus", "why"),
    [
        ({}, 32, "this process may use 0-15,32-47"),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 32, "this process"),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "350000 100000\n"}, 3, "/sys/fs/cgroup/a/b/cpu.max"),
        (V2 | {"sys/fs/cgroup/a/b/x": "", "sys/fs/cgroup/a/cpu.max": "400000 100000\n"}, 4, "/sys/fs/cgroup/a/cpu.max"),
        (V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1, "/sys/fs/cgroup/cpu.max"),
        (
            V1 | {"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "800000\n"}
            | {"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"},
            8,
            "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us",
        ),
        (V1 | {"sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n"}, 32, "this process"),
        ({"proc/self/status": "Name:\tx\n"}, 1, "nothing says how many"),
    ],
)  # fmt: skip
def test_processors(tmp_path: Path, files: dict[str, str], cpus: int, why: str) -> None:
    found, said = found_cpus(tree(tmp_path, files))
    assert found == cpus * 1000
    assert said.startswith(why)


@pytest.mark.parametrize(
    ("files", "before", "why"),
    [
        ({}, 65536000 * 1024, "MemTotal is 62.5 GiB, less 3.1 GiB"),
        (V2 | {"sys/fs/cgroup/a/b/memory.max": "max\n"}, 65536000 * 1024, "MemTotal"),
        (V2 | {"sys/fs/cgroup/a/b/memory.max": f"{8 * GIB}\n"}, 8 * GIB, "/sys/fs/cgroup/a/b/memory.max is 8 GiB"),
        (V2 | {"sys/fs/cgroup/a/memory.max": f"{32 * GIB}\n", "sys/fs/cgroup/a/b/x": ""}, 32 * GIB, "/sys/fs/"),
        (V1 | {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GIB}\n"}, 4 * GIB, "/sys/fs/cgroup/memory/job"),
        (V1 | {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, 65536000 * 1024, "MemTotal"),
    ],
)  # fmt: skip
def test_memory(tmp_path: Path, files: dict[str, str], before: int, why: str) -> None:
    found, said = found_memory(tree(tmp_path, files))
    assert found == int(before - max(512 * 1024**2, before * 0.05))
    assert said.startswith(why)


def smi(folder: Path, script: str) -> dict[str, str]:
    """An environment with an nvidia-smi that does this."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o755)
    return {"PATH": str(program.parent)}


def test_what_nvidia_smi_lists(tmp_path: Path) -> None:
    found, why = found_gpus(smi(tmp_path, f"print({LIST!r}, end='')"), tree(tmp_path, {}))
    assert ([gpu.name for gpu in found], why) == (["0", "1"], "nvidia-smi")


def test_parts_of_cards_stand_for_them(tmp_path: Path) -> None:
    found, _ = found_gpus(smi(tmp_path, f"print({MIG!r}, end='')"), tree(tmp_path, {}))
    parts = ["MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d"]
    assert [(gpu.name, gpu.is_part) for gpu in found] == [*((part, True) for part in parts), ("1", False)]


@pytest.mark.parametrize(
    "script",
    [
        "print('Failed to initialize NVML: Driver/library version mismatch')",
        "print('GPU 0: x'); raise SystemExit(1)",
        "import os; os.write(1, bytes(range(256)))",
        "import os; os.kill(os.getpid(), 9)",
    ],
)
def test_nonsense_is_no_answer(tmp_path: Path, script: str) -> None:
    root = tree(tmp_path, {"proc/driver/nvidia/gpus/0000:01:00.0/information": ""})
    found, why = found_gpus(smi(tmp_path, script), root)
    assert ([gpu.name for gpu in found], why) == (["0"], "/proc/driver/nvidia/gpus (nvidia-smi had no answer)")


def test_a_driver_that_hangs_costs_two_seconds(tmp_path: Path) -> None:
    environment = smi(tmp_path, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)")
    began = time.monotonic()
    assert gpus.answer([f"{tmp_path}/bin/nvidia-smi", "-L"], environment, 0.2) is None
    found, why = found_gpus(environment, tree(tmp_path, {}))
    assert (found, why) == ((), "none were found (nvidia-smi had no answer)")
    assert time.monotonic() - began < 10


NVML = """
class NVMLError(Exception): pass
nvmlInit = lambda: None
nvmlDeviceGetCount = lambda: 2
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetUUID = lambda card: str(card) if isinstance(card, str) else f"GPU-0{card}"
nvmlDeviceGetMigMode = lambda card: (card, card)
nvmlDeviceGetMaxMigDeviceCount = lambda card: 3
def nvmlDeviceGetMigDeviceHandleByIndex(card, number):
    if number > 1: raise NVMLError
    return f"MIG-{card}{number}"
"""


def test_nvml_is_asked_first_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)
    monkeypatch.syspath_prepend(tmp_path)
    environment = smi(tmp_path, f"print({LIST!r}, end='')") | {"PYTHONPATH": str(tmp_path)}
    found, why = found_gpus(environment, tree(tmp_path, {}))
    assert ([gpu.name for gpu in found], why) == (["0", "MIG-10", "MIG-11"], "NVML")
    (tmp_path / "pynvml.py").write_text("import os; os._exit(1)")
    found, why = found_gpus(environment, tree(tmp_path, {}))
    assert ([gpu.name for gpu in found], why) == (["0", "1"], "nvidia-smi")


@pytest.mark.parametrize(
    ("variable", "value", "names", "maker"),
    [
        ("CUDA_VISIBLE_DEVICES", "2,3", ["2", "3"], "nvidia"),
        ("CUDA_VISIBLE_DEVICES", "", [], "nvidia"),
        ("CUDA_VISIBLE_DEVICES", "1,-1,2", ["1"], "nvidia"),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles", [], "nvidia"),
        ("CUDA_VISIBLE_DEVICES", "MIG-a28ad590-3fda", ["MIG-a28ad590-3fda"], "nvidia"),
        ("ROCR_VISIBLE_DEVICES", "1", ["1"], "amd"),
    ],
)
def test_what_is_hidden_from_the_worker_is_not_there(
    tmp_path: Path, variable: str, value: str, names: list[str], maker: str
) -> None:
    """As Slurm, or whoever started it, has shared the cards out."""
    environment = smi(tmp_path, f"print({LIST!r}, end='')") | {variable: value}
    found, why = found_gpus(environment, tree(tmp_path, {}))
    assert [gpu.name for gpu in found] == names
    assert {gpu.maker for gpu in found} <= {maker}
    assert why == f"{variable} is {value!r}"


def test_cards_of_amd(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    processor, card = "cpu_cores_count 64\nsimd_count 0\n", "cpu_cores_count 0\nsimd_count 440\n"
    root = tree(tmp_path, {f"{nodes}/{n}/properties": text for n, text in enumerate([processor, card, card])})
    found, why = found_gpus({"PATH": ""}, root)
    assert [(gpu.name, gpu.maker) for gpu in found] == [("0", "amd"), ("1", "amd")]
    assert why.startswith("/sys/class/kfd")


def test_the_whole_of_it(tmp_path: Path) -> None:
    found = found_hardware(smi(tmp_path, f"print({LIST!r}, end='')"), tree(tmp_path, V2))
    assert told(found) == {"cpus": "32", "memory": "59.4 GiB", "gpus": "0,1"}
    assert found.why.keys() == {"cpus", "memory", "gpus"}
