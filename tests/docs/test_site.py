"""The documentation site builds without a warning, asks nobody else for anything, and leads to every page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.cli.display.event_format import PHRASES
from tests.docs.runner import ROOT
from tests.docs.test_help import EXAMPLES

pytestmark = pytest.mark.check

FOREIGN = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//|@import|url\(["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it as `make docs` does: a warning is an error, and a link inside that leads nowhere is a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", folder / "trees", ROOT / "docs", folder / "html"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


def test_the_manual_page_has_each_command(site: Path) -> None:
    made = site.parent / "man"
    folders = [str(folder) for folder in (site.parent / "trees", ROOT / "docs", made)]
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "-b", "man", "-d", *folders], check=True)
    page = (made / "jobq.1").read_text()
    assert all(name in page for name in EXAMPLES)


def test_each_page_is_reached_from_the_first(site: Path) -> None:
    first = (site / "index.html").read_text()
    pages = {page.relative_to(site) for page in site.rglob("*.html")} - {
        Path(name) for name in ("index.html", "search.html", "genindex.html", "py-modindex.html")
    }
    assert len(pages) > 35
    assert [str(page) for page in sorted(pages) if f'href="{page}"' not in first] == []


def test_no_page_asks_another_site_for_anything(site: Path) -> None:
    for file in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert not FOREIGN.search(file.read_text()), file


def test_the_reference_has_each_command_event_endpoint_and_error(site: Path) -> None:
    commands = (site / "reference/command-line.html").read_text()
    words = " ".join(re.sub(r"<[^>]+>", " ", commands).split())
    assert all(name in words for name in EXAMPLES)
    events = (site / "reference/log-events.html").read_text()
    assert all(name in events for name in PHRASES)
    assert "/api/queues/" in (site / "reference/http-api.html").read_text()
    assert "QueueNotFound" in (site / "reference/errors.html").read_text()
    assert "pre-authentication" in (site / "reference/wire-format.html").read_text()
    assert "task_ready" in (site / "reference/schema.html").read_text()
    assert ".. program::" not in commands, "markup is not printed as it stands"
    assert "jobq.queue.Queue.push" in (site / "reference/python.html").read_text()
