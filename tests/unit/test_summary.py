"""What several runs came to together: each test once, the flaky ones by name."""

import time
from pathlib import Path

import pytest

from tests import summary

_REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_good" file="tests/unit/test_a.py" time="0.5"/>
<testcase classname="tests.unit.test_a" name="test_bad[x]" file="tests/unit/test_a.py" time="1.5"><failure/></testcase>
<testcase classname="tests.unit.test_b" name="test_set_up" file="tests/unit/test_b.py" time="1"><error/></testcase>
<testcase classname="tests.unit.test_b" name="test_not" file="tests/unit/test_b.py" time="0">
<skipped message="not here"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("flaky", "last"),
    [([], "1 passed, 2 failed, 1 skipped"), (["tests/unit/test_a.py::test_bad[x]"], "2 passed, 1 failed, 1 skipped")],
)
def test_what_is_flaky_is_named_and_no_failure(tmp_path: Path, flaky: list[str], last: str) -> None:
    report = tmp_path / "0.xml"
    report.write_text(_REPORT)
    assert summary.failed_in(report) == ["tests/unit/test_a.py::test_bad[x]", "tests/unit/test_b.py::test_set_up"]
    told = list(summary.lines([report], time.monotonic(), 0, flaky))
    assert told[-1] == last
    assert [line.strip() for line in told if "::test_bad" in line and "0 s" not in line] == flaky
