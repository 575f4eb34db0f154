"""What a task finds of its grant in its environment. It is an agreement: nothing keeps a program from more."""

from collections.abc import Mapping
from typing import Final

from jobq.resources.grants import ResourceGrant
from jobq.resources.offer import Offer
from jobq.resources.request import UNIT, shown

# What numeric libraries and Python make as many threads by as they find processors of.
_THREADS: Final = ("OMP_NUM_THREADS", "PYTHON_CPU_COUNT")
_VISIBLE: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}  # HIP counts within the latter


def variables(grant: ResourceGrant, offer: Offer, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say what was granted.

    Args:
        grant: what the attempt holds.
        offer: of its worker. Where it has GPUs, a task that has asked for none is shown none.
        own: the variables that the task brings: its number of threads is its own matter, which devices are not.
    """
    found: dict[str, str] = {}
    if grant.cpus:
        found["JOBQ_CPUS"] = shown(grant.cpus)
        found |= {name: str(max(1, grant.cpus // UNIT)) for name in _THREADS if name not in own}
    if grant.gpus:
        found["JOBQ_GPUS"] = str(len(grant.gpus))
    if grant.mem:
        found["JOBQ_MEMORY"] = str(grant.mem)
    for maker in {gpu.maker for gpu in offer.gpus or ()}:
        found[_VISIBLE[maker]] = ",".join(gpu.name for gpu in grant.gpus if gpu.maker == maker)
        if maker == "nvidia":
            found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # indices are those of nvidia-smi
    return found
