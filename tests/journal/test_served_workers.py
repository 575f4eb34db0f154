"""A jobq worker behind `jobq serve`: it is canceled, looked at and remembered as one that has the database."""

import sys
import time
from pathlib import Path

from jobq.journal.records import TaskState
from tests.cli.conftest import Jobq
from tests.service.server import running

from .conftest import Place

JOBQ = f"{sys.executable} -m jobq"


def test_a_worker_over_http_is_like_any_other(tmp_path: Path) -> None:
    """Cancel within one renewal and the grace; progress and output while it runs; host, code, usage, value after."""
    place = Place(Jobq(tmp_path), "demo")
    place.jobq.home.mkdir()
    with running(f"sqlite://{place.jobq.file}/demo", tmp_path) as server:
        over = Place(place.jobq, f"{server.url}/demo")
        over("create")
        (id_,) = over.push(f"trap '' TERM; echo hello; {JOBQ} progress 0.5 half; sleep 60")
        worker = over.start_worker()
        record = place.until(id_, lambda record: record.beat is not None and record.beat.progress == 0.5)
        assert record.beat is not None
        assert record.beat.text == "half"
        place.until(id_, lambda record: record.beat is not None and "hello" in record.beat.output)
        asked = time.time()
        assert place("cancel", id_, "--json").objects == [{"id": id_, "canceled": "stopping"}]
        record = place.until(id_, lambda record: record.state is TaskState.CANCELED)
        assert record.last is not None
        assert record.last.ended - asked < 0.5 + 1 + 1.5, "a renewal, the grace, and what a busy machine takes"
        assert (record.last.outcome, record.last.signal) == ("canceled", 9)
        (fails,) = over.push('echo 7 > "$JOBQ_RESULT_FILE"; echo words; exit 3', more=("--num-retries", "0"))
        record = place.until(fails, lambda record: record.state is TaskState.DEAD)
        last = record.last
        assert last is not None
        assert (last.exit_code, last.value, last.then, bool(last.host), last.program) == (3, 7, "dead", True, "echo")
        assert last.usage is not None
        assert last.started is not None
        assert last.waited is not None
        assert 0 <= last.waited < 60
        assert place("logs", fails).lines == ["words"]
        worker.terminate()
        worker.wait(20)
        for pipe in (worker.stdin, worker.stdout, worker.stderr):
            if pipe is not None:
                pipe.close()
