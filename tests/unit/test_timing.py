"""rules.md 1.3 rules 2 and 4 as numbers."""

import re
import time
from datetime import timedelta

import pytest

from jobq.errors import ConfigurationError
from jobq.formats import durations
from jobq.lease.timing import LeaseTiming, timing_for
from jobq.settings import Settings


@pytest.mark.parametrize(
    ("lease", "hold"),
    [(10, 8.4), (60, 51.0), (300, 255.0), (5, 3.45)],
)
def test_hold_is_the_smaller_of_both_bounds(lease: float, hold: float) -> None:
    assert LeaseTiming(lease=lease).hold == pytest.approx(hold)


def test_period_and_attempt() -> None:
    assert LeaseTiming(lease=60).period == 15
    assert LeaseTiming(lease=24).attempt == 3
    assert LeaseTiming(lease=300).attempt == 5


@pytest.mark.parametrize("lease", [10, 12, 30, 60, 300, 604800])
def test_every_usual_lease_can_be_kept(lease: float) -> None:
    LeaseTiming(lease=lease).check()


def test_a_short_lease_needs_permission() -> None:
    with pytest.raises(ConfigurationError, match="--visibility-timeout"):
        LeaseTiming(lease=5).check()
    LeaseTiming(lease=5).check(allow_short=True)


def test_a_lease_that_cannot_be_kept_is_refused_even_with_permission() -> None:
    with pytest.raises(ConfigurationError, match="cannot be kept"):
        LeaseTiming(lease=2).check(allow_short=True)


def test_a_grace_that_does_not_fit_names_the_number_to_change() -> None:
    settings = Settings(lock_lost_behavior="sigterm", lock_lost_grace=timedelta(seconds=30))
    with pytest.raises(ConfigurationError, match=r"JOBQ_LOCK_LOST_GRACE below 24s"):
        timing_for(timedelta(seconds=60), settings).check()
    timing_for(timedelta(seconds=60), settings.copied({"lock_lost_grace": timedelta(seconds=23)})).check()


def test_a_grace_of_a_month_is_told_what_would_do_at_once() -> None:
    settings = Settings(lock_lost_behavior="sigterm", lock_lost_grace=timedelta(days=30))
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match="cannot be kept") as refused:
        timing_for(timedelta(seconds=60), settings).check(option="LEASE")
    assert time.monotonic() - began < 0.5
    found = re.search(r"raise LEASE to (\w+) \(`jobq help lease-too-short`\)$", str(refused.value))
    assert found is not None
    enough = durations.parse(found[1])
    timing_for(enough, settings).check()
    with pytest.raises(ConfigurationError):
        timing_for(enough - timedelta(minutes=1), settings).check()
