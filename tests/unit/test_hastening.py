"""`Queue.hasten`, of both faces of the library, and what is said where it cannot be."""

import time
from datetime import timedelta

import pytest

import jobq
from jobq.backend import Hastened, hastening
from jobq.errors import ConfigurationError


def test_a_program_lets_a_task_run_now() -> None:
    with jobq.sync.connect("memory://hastened/demo") as queue:
        later = queue.push(jobq.Task.new(command="true", not_before=time.time() + 600))
        assert queue.pull_and_execute(wait=timedelta(0)) is None
        assert queue.hasten([later, "unknown"]) == [Hastened.DUE, Hastened.UNKNOWN]
        assert queue.stats().visible == 1


def test_one_id_is_no_list_of_ids() -> None:
    with jobq.sync.connect("memory://hastened/demo") as queue, pytest.raises(TypeError):
        queue.hasten("a")


def test_a_backend_that_cannot_is_told_by_what_there_is_else() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be hastened: .* Cancel it, and push it anew"):
        hastening(object())
