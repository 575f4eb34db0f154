"""Pages of the site that are made from the code when it is built, and links that would lead out of it."""

import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tests.supply_chain import licences

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS: Final = Path(__file__).parent
_MADE: Final = DOCS / "reference"
_LINK: Final = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)#]+)[^)]*\)")


def setup(_app: "Sphinx") -> dict[str, Any]:
    """Be an extension of Sphinx."""
    return {"parallel_read_safe": True}


def write_pages(_app: "Sphinx") -> None:
    """Write what is made."""
    (_MADE / "http-api.md").write_text(http_api(), encoding="utf-8")
    (_MADE / "log-events.md").write_text(log_events(), encoding="utf-8")
    (_MADE / "errors.md").write_text(errors(), encoding="utf-8")
    (_MADE / "wire-format.md").write_text(wire_format(), encoding="utf-8")
    (_MADE / "schema.md").write_text(schema(), encoding="utf-8")
    (_MADE / "licences.md").write_text(licences.page(), encoding="utf-8")


def outside_links(_app: "Sphinx", docname: str, source: list[str]) -> None:
    """Name files of the project that are no pages by their path in the source, where links to them would end."""
    page = DOCS / f"{docname}.md"

    def target(match: re.Match[str]) -> str:
        found = (page.parent / match[2] / match[3]).resolve()
        if found.is_relative_to(DOCS):
            return match[0]
        return f"{match[1]} (`{found.relative_to(DOCS.parent)}` in the source)"

    source[0] = _LINK.sub(target, source[0])


def http_api() -> str:
    """Return the endpoints of the service, from the table that serves them."""
    from jobq.server import app  # noqa: PLC0415 - with the site's own packages alone

    parts = [part for part in vars(app).values() if isinstance(part, ModuleType) and hasattr(part, "ENDPOINTS")]
    lines = [
        "# HTTP API",
        "",
        "*Made from the service's table of endpoints; the service itself answers `GET /openapi.json` with all of it.*",
        "What a service is, and how to run one: [HTTP service](../http-service.md).",
    ]
    for part in parts:
        head = inspect.cleandoc(part.__doc__ or "").partition("\n")[0]
        lines += ["", f"## {part.__name__.rpartition('.')[2].replace('_', ' ').capitalize()}", "", head, ""]
        lines += ["| endpoint | scope | what it does |", "|---|---|---|"]
        for each in part.ENDPOINTS:
            scope = "none" if each.is_open else each.scope.value if each.scope is not None else "as the request says"
            lines.append(f"| `{each.method} {each.path}` | {scope} | {_cell(each.summary)} |")
    return "\n".join(lines) + "\n"


def log_events() -> str:
    """Return the events that a worker's log has, with the words that people see."""
    from jobq.cli.display.event_format import PHRASES  # noqa: PLC0415 - as above

    lines = ["# Log events", "", "*Made from the code.* A worker's JSON log has one of these as `event` in each line."]
    lines += ["", "| event | for people |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(phrase)} |" for name, phrase in sorted(PHRASES.items())]
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Return the errors that the library raises, and with which code a command ends for each."""
    from jobq import errors as module  # noqa: PLC0415 - as above

    found = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, module.JobqError)]
    lines = [
        "# Errors and exit codes",
        "",
        "*Made from the code.* A command that ends by one of these prints it in one line on standard error, and the",
        "`jobq help` that says more, or an object with `--json`; it ends with its code. 0 = done; 1 = a task failed,",
        "or work is left; 2 = a usage",
        "error; 130 and 143 = interrupted.",
        "",
        "| error | exit code | what it means |",
        "|---|---|---|",
    ]
    for kind in sorted(found, key=lambda kind: (kind.exit_code, kind.__name__)):
        meaning = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
        lines.append(f"| `{kind.__name__}` | {kind.exit_code} | {_cell(meaning)} |")
    return "\n".join(lines) + "\n"


def wire_format() -> str:
    """Return what a task is as bytes: examples that the code has written, and what each version's module says."""
    from jobq.formats import task_fields, wire_v1, wire_v3  # noqa: PLC0415 - as above
    from jobq.task import Task  # noqa: PLC0415 - as above

    task = Task.new(command="python train.py --seed 1", env={"SEED": "1"}, id="an-id")
    old = b'{"version":1,"id":"an-id","kwargs":"{\\"cmd\\":\\"echo hello\\"}","num_retries":3}'
    lines = [
        "# Wire format",
        "",
        "*Made from the code.* A task is JSON in UTF-8, wherever it is queued. Unknown fields and a newer version are",
        "refused: the message becomes a dead letter, with its bytes.",
    ]
    for version, text, module in ((2, task.encode(), task_fields), (3, None, wire_v3), (1, old, wire_v1)):
        lines += ["", f"## Version {version}", ""]
        if text is not None:
            lines += ["```json", json.dumps(json.loads(text), indent=2), "```", ""]
        lines.append(inspect.cleandoc(module.__doc__ or ""))
    return "\n".join(lines) + "\n"


def schema() -> str:
    """Return the tables of an SQLite file, as a new one has them, and PostgreSQL's as its statements stand."""
    import jobq_postgres  # noqa: PLC0415 - as above
    import jobq_sqlite  # noqa: PLC0415 - as above

    lines = [
        "# Tables",
        "",
        "*Made from the files that make them.* For looking, by who likes SQL: write through jobq alone. The journal",
        "says the same in words that stay.",
        "",
        "## PostgreSQL",
        "",
    ]
    lines += [
        "```text",
        (Path(jobq_postgres.__file__).parent / "schema.sql").read_text().rstrip(),
        "```",
        "",
        "## SQLite",
    ]
    for file in sorted(
        Path(jobq_sqlite.__file__).parent.glob("*.sql"), key=lambda file: (file.stem != "schema", file.stem)
    ):
        lines += ["", f"### {file.stem.replace('_', ' ').capitalize()}", "", "```sql", file.read_text().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
