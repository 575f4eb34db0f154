"""Pages of the site that are made from the code when it is built, and links that would lead out of it."""

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

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


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
