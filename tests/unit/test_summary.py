"""What several runs came to together: each test once, those that failed by name."""

import time
from pathlib import Path

from tests import summary

_REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_good" file="tests/unit/test_a.py" time="0.5"/>
<testcase classname="tests.unit.test_a" name="test_bad[x]" file="tests/unit/test_a.py" time="1.5"><failure/></testcase>
<testcase classname="tests.unit.test_b" name="test_set_up" file="tests/unit/test_b.py" time="1"><error/></testcase>
<testcase classname="tests.unit.test_b" name="test_not" file="tests/unit/test_b.py" time="0">
<skipped message="not here"/></testcase>
</testsuite></testsuites>"""


def test_what_failed_is_named_and_counted(tmp_path: Path) -> None:
    report = tmp_path / "0.xml"
    report.write_text(_REPORT)
    told = list(summary.lines([report], time.monotonic(), 0))
    assert told[-1] == "1 passed, 2 failed, 1 skipped"
    failed = told[told.index("\nfailed:") + 1 :][:2]
    assert [line.strip() for line in failed] == [
        "tests/unit/test_a.py::test_bad[x]",
        "tests/unit/test_b.py::test_set_up",
    ]
