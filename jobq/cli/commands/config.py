"""`jobq config`: what is in force here, and where it came from."""

import os
import sys
from typing import Final

import click

from jobq.cli.common import ExampleCommand, json_option, read_settings
from jobq.cli.display import terminal

_UNSET: Final = "-"
_CHANGED: Final = "1"  # bold


@click.command(cls=ExampleCommand, examples=("jobq config", "jobq config --changed", "jobq config --json"))
@click.option("--changed", is_flag=True, help="Only what is not at its default.")
@json_option
def config(changed: bool, as_json: bool) -> int:
    """Show each setting: its value, where that came from, what it decides. Secrets stay hidden.

    Of processors, memory and GPUs it shows what `auto` finds on this machine, and where each comes from. A driver of
    GPUs that does not answer in two seconds is passed over. docs/configuration.md says what each setting accepts.
    """
    from jobq.cli.configuration import explain  # noqa: PLC0415 - `jobq --help` must not pay for it
    from jobq.resources.discovery import found_hardware, told  # noqa: PLC0415 - as above
    from jobq.run.spawn import containment, launchers  # noqa: PLC0415 - as above
    from jobq.run.spawn.choose_spawner import is_possible  # noqa: PLC0415 - as above
    from jobq.settings import user_home  # noqa: PLC0415 - as above

    settings = read_settings()  # warns about variables that nothing reads
    is_guarded = settings.guardian == "on" and is_possible()
    held = containment.try_here(settings.containment, is_guarded=is_guarded)
    started = launchers.try_here(settings.launcher, is_guarded=is_guarded)
    in_use = {
        "containment": {"in_use": held.kind, "why": held.why},
        "launcher": {"in_use": started.kind, "why": started.why},
        "home": {"in_use": str(user_home(settings))},
    }
    found = found_hardware(os.environ)
    for name, value in told(found).items():
        in_use[f"offer_{name}"] = {"auto": value, "why": found.why[name]}
    rows = [row for row in explain() if row.about.audience != "jobq" and (row.origin != "default" or not changed)]
    if as_json:
        for row in rows:
            terminal.put_json(
                {
                    "setting": row.name,
                    "variable": row.variable,
                    "value": row.value,
                    "default": row.default,
                    "origin": row.origin,
                    "accepts": row.about.accepts,
                    "about": row.about.text,
                    **in_use.get(row.name, {}),
                }
            )
        return 0
    values = [terminal.visible(row.value or row.about.unset or _UNSET) for row in rows]
    first = max((len(row.variable) for row in rows), default=0)
    second = max(map(len, values), default=0)
    for row, value in zip(rows, values, strict=True):
        text = f"{row.variable:<{first}}  {value:<{second}}"
        is_set = row.origin != "default"
        painted = terminal.paint(text, _CHANGED, sys.stdout) if is_set else text
        terminal.put_text(f"{painted}  {'set here' if is_set else 'default '}  {row.about.text}")
        if used := in_use.get(row.name):
            why = f" ({used['why']})" if "why" in used else ""
            label, what = ("auto", used["auto"]) if "auto" in used else ("in use", used["in_use"])
            terminal.put(f"{'':<{first}}  {label}: {terminal.visible(what + why)}")
    return 0
