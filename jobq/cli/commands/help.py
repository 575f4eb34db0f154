"""`jobq help TOPIC`: a page of the documentation, or what an error means; read from the installation, no network."""

import re
import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Final

import click

import jobq
from jobq.cli.common import ExampleCommand, did_you_mean
from jobq.cli.display import terminal

SHORT_NAMES: Final = "troubleshooting"  # the page with a section for each error
_SECTION: Final = re.compile(r"^## ([a-z][a-z0-9-]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_WORD_OF_CLASS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


@click.command(
    cls=ExampleCommand, examples=("jobq help lock-lost", "jobq help 75", "jobq help batches", "jobq help topics")
)
@click.argument("topic", metavar="COMMAND|TOPIC")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def help(topic: str, as_json: bool) -> int:  # noqa: A001 - the command's name
    """Explain a command, an error, an exit code or a topic, without a network.

    Errors name their topic, and Python their class (LockLost); `jobq help topics` lists all of them.
    """
    if topic == "topics":
        for name, title in _topics():
            if as_json:
                terminal.put_json({"topic": name, "title": title})
            else:
                terminal.put(f"{name:24}{title}")
        return 0
    word = _meant(topic)
    text = sections().get(word) or pages().get(word)
    if text is None:
        meant = did_you_mean(word, [name for name, _ in _topics()])
        raise click.UsageError(f"no topic {topic!r}; `jobq help topics` lists them{meant}")
    if as_json:
        terminal.put_json({"topic": word, "text": text})
    else:
        _show(text)
    return 0


def pages() -> dict[str, str]:
    """Return the pages of the documentation by their names: of the installation, or of the sources it was made from."""
    folder = files(jobq) / "docs"
    if not folder.is_dir():  # an editable installation
        folder = Path(jobq.__file__).parent.parent / "docs"
    found = (page for page in folder.iterdir() if page.name.endswith(".md") and page.name != "index.md")
    return {page.name.removesuffix(".md"): page.read_text(encoding="utf-8") for page in found}


def sections() -> dict[str, str]:
    """Return what is said of each error, by its short name."""
    found = _SECTION.findall(pages().get(SHORT_NAMES, ""))
    return {name: f"# {name}\n\n{text.strip()}\n" for name, text in found}


def _meant(topic: str) -> str:
    """Return the name of a topic: of an exit code, of an error's class as a traceback has it, or as it stands."""
    if topic.isdecimal():
        return "exit-codes"
    return _WORD_OF_CLASS.sub("-", topic.removeprefix("jobq.errors.")).lower()


def _topics() -> Iterable[tuple[str, str]]:
    for name, text in sorted(pages().items()):
        title = _TITLE.search(text)
        yield name, title[1] if title else ""
    for name, text in sections().items():
        yield name, re.split(r"[.:;]\s", " ".join(text.split("\n\n")[1].split()) + " ")[0]


def _show(text: str) -> None:
    if not terminal.uses_color(sys.stdout):
        terminal.put_text(text.rstrip("\n"))
        return
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.markdown import Markdown  # noqa: PLC0415 - as above

    console = Console()
    with console.capture() as shown:
        console.print(Markdown(text, hyperlinks=False))
    terminal.put_text(shown.get().rstrip("\n"))
