"""`jobq hwdetect`: what `auto` comes to on this machine."""

import os

import click

from jobq.cli.common import ExampleCommand, json_option
from jobq.cli.display import terminal


@click.command(cls=ExampleCommand, examples=("jobq hwdetect", "jobq hwdetect --json"))
@json_option
def hwdetect(as_json: bool) -> int:
    """Show what `worker --cpus auto --memory auto --gpus auto` would offer of this machine, and where each comes from.

    Looks at the processors that this process may use, at its control groups, and at the GPUs that their drivers know;
    what CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES hides is not there. A driver that does not answer in two seconds
    is passed over.
    """
    from jobq.resources.discovery import found_hardware, told  # noqa: PLC0415 - `jobq --help` must not pay for it

    found = found_hardware(os.environ)
    if as_json:
        gpus = [{"name": gpu.name, "maker": gpu.maker, "is_part": gpu.is_part} for gpu in found.gpus]
        terminal.put_json({"cpus": found.cpus / 1000, "memory": found.mem, "gpus": gpus, "why": dict(found.why)})
        return 0
    for name, value in told(found).items():
        terminal.put(f"{name:<7} {value:<12} {found.why[name]}")
    return 0
