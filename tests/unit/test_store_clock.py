"""What is decided on times that a store holds is decided by the store's clock, never by a worker's own."""

import re
from pathlib import Path
from typing import Final

import jobq

_ROOT: Final = Path(jobq.__file__).parents[1]
_OWN: Final = re.compile(r"\btime\.time\(\)|datetime\.now\(|\butcnow\(")
# Files that keep a journal, or forget what is in one; and the lines in which one's own clock is right.
_LOOKED_AT: Final = (
    "backends/jobq_azure/table_journal",
    "backends/jobq_azure/ledger",
    "backends/jobq_sqlite",
    "backends/jobq_postgres",
    "backends/jobq_memory",
    "jobq/journal",
    "jobq/batches.py",
    "jobq/batch_values.py",
)
_MAY: Final = {
    "table_journal/client.py": "it is this that learns how far the store's clock is ahead",
    "table_journal/delivery.py": "dates an attempt, which `Notebook.ended` dates by the store's clock",
    "table_journal/recorder.py": "this is where it does",
    "jobq_postgres/examination.py": "compares the two clocks",
    "jobq_postgres/journal.py": "the age of a task by its own word, which its pusher's clock has made",
    "jobq_postgres/settle.py": "a record's own time; the row's is the server's",
}


def test_no_other_clock_decides() -> None:
    found = set()
    for place in _LOOKED_AT:
        path = _ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if _OWN.search(file.read_text()):
                found.add("/".join(file.parts[-2:]))
    assert found == set(_MAY)
