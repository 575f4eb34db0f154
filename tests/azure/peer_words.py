"""Run by the peer's own Python: prints, as JSON, the commands of ai4s-jobq with their options, and its variables."""

import json
import re
from pathlib import Path

from ai4s.jobq import cli  # type: ignore[import-not-found] # of another environment

commands = {
    name: [option for parameter in command.params if parameter.param_type_name == "option" for option in parameter.opts]
    for name, command in {"": cli.main, **cli.main.commands}.items()
}
sources = "".join(file.read_text() for file in Path(cli.__file__).parent.rglob("*.py"))
print(json.dumps([commands, sorted(set(re.findall(r"\bJOBQ_[A-Z_]*[A-Z]\b", sources)))]))
