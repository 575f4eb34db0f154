"""`jobq healthcheck`: whether the worker of this container is alive. Without options `jobq.__main__` answers it."""

import os
from pathlib import Path

import click

from jobq.cli.common import ExampleCommand, duration, json_option
from jobq.cli.display import terminal
from jobq.errors import ConfigurationError
from jobq.telemetry.probe import MAX_AGE_SECONDS, VARIABLE, Unhealthy, check, sentence


@click.command(
    cls=ExampleCommand,
    examples=("jobq healthcheck", "jobq healthcheck --file /tmp/jobq-health --max-age 1m --json"),
)
@click.option("--file", metavar="FILE", help="What the worker writes. Default: JOBQ_HEALTH_FILE.")
@click.option(
    "--max-age", metavar="DURATION", callback=duration, help="How old the worker's last word may be. Default: 30s."
)
@json_option
def healthcheck(file: str | None, max_age: object, as_json: bool) -> int:
    """End with 0 when the worker that writes JOBQ_HEALTH_FILE is alive, with 1 when it is not.

    A worker writes the file every 5 s. For HEALTHCHECK of a container and exec probes of Kubernetes.
    """
    from datetime import timedelta  # noqa: PLC0415 - for the type alone

    path = file or os.environ.get(VARIABLE)  # not by `Settings`: it would take half of a probe's time
    if not path:
        raise ConfigurationError(
            f"no health file is named: set {VARIABLE} for the worker and for this command, or give --file"
        )
    seconds = max_age.total_seconds() if isinstance(max_age, timedelta) else MAX_AGE_SECONDS
    try:
        found = check(Path(path), seconds)
    except Unhealthy as error:
        if as_json:
            terminal.put_json({"healthy": False, "detail": str(error)})
        else:
            terminal.complain(str(error))
        return 1
    if as_json:
        age = round(found.age, 3)
        terminal.put_json(
            {"healthy": True, "state": found.state, "busy": found.busy, "slots": found.slots, "age_s": age}
        )
    else:
        terminal.put(sentence(found))
    return 0
