"""`jobq help TOPIC`: each error has a section, and each topic that is named anywhere is there."""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from jobq import errors
from jobq.cli.commands.help import pages, sections
from jobq.cli.main import _MODULE_OF
from tests.cli.conftest import Jobq

ROOT: Final = Path(__file__).parents[2]
ERRORS: Final = sorted(
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.JobqError)
)
NAMED: Final = re.compile(r"\bjobq help ([a-z][a-z0-9-]+)")


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "JobqError"])
def test_each_error_has_a_section(name: str) -> None:
    assert re.sub(r"(?<!^)([A-Z])", r"-\1", name).lower() in sections()


def test_each_topic_that_is_named_is_there() -> None:
    texts = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(ROOT / "jobq").rglob("*.py")]
    texts += (ROOT / "backends").rglob("*.py")
    named = {topic for text in texts for topic in NAMED.findall(text.read_text())}
    assert len(named) > 3
    assert named - set(sections()) - set(pages()) - set(_MODULE_OF) == {"topics"}


def test_an_error_names_its_topic_and_the_topic_says_what_to_do(jobq: Jobq) -> None:
    assert jobq("demo", "size", code=4).err.splitlines()[-1] == "More: jobq help queue-not-found"
    assert "first push makes it" in jobq("help", "queue-not-found").out
    assert json.loads(jobq("demo", "size", "--json", code=4).err)["topic"] == "queue-not-found"


def test_a_page_and_a_command_and_a_slip(jobq: Jobq) -> None:
    assert jobq("help", "batches").out.startswith("# Batches")
    assert jobq("help", "dead", "list").out.startswith("Usage: jobq [QUEUE] dead list")
    assert jobq("demo", "help", "lock-lost").out.startswith("# lock-lost")
    assert "did you mean 'lock-lost'" in jobq("help", "lock-los", code=2).err


def test_an_error_as_python_names_it_and_an_exit_code_find_their_sections(jobq: Jobq) -> None:
    assert jobq("help", "LockLost").out.startswith("# lock-lost")
    assert jobq("help", "jobq.errors.PushUnknown").out.startswith("# push-unknown")
    assert "the same again, later" in jobq("help", "75").out
    assert json.loads(jobq("help", "75", "--json").out)["topic"] == "exit-codes"


def test_topics_lists_each_page_and_each_error(jobq: Jobq) -> None:
    listed = {line.split()[0] for line in jobq("help", "topics").out.splitlines()}
    assert listed == {*pages(), *sections()}
    assert {json.loads(line)["topic"] for line in jobq("help", "topics", "--json").out.splitlines()} == listed
