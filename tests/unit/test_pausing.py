"""A mark of a pause that somebody else may have written."""

import pytest

from jobq.pausing import MOST_CHARACTERS, Pause


@pytest.mark.parametrize(
    "text",
    [
        "by hand",
        "[" * 100_000,
        '{"at": NaN, "by": "x", "reason": ""}',
        '{"at": 1e999, "by": "x", "reason": ""}',
        '{"at": -5, "by": "x", "reason": ""}',
        '{"at": ' + "9" * 400 + ', "by": "x", "reason": ""}',
        '{"at": 1, "by": "' + "x" * 10_000 + '", "reason": null}',
        "[]",
        "",
    ],
    ids=lambda text: text[:20],
)
def test_whatever_stands_there_is_a_pause_that_can_be_shown(text: str) -> None:
    mark = Pause.decode(text)
    assert mark is not None
    assert str(mark).startswith("paused for ")
    assert max(len(mark.by), len(mark.reason)) <= MOST_CHARACTERS
    assert Pause.decode(mark.encode()) == mark


def test_no_mark_is_no_pause() -> None:
    assert Pause.decode(None) is None
