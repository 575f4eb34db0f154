"""The bounds of histograms of durations, in seconds.

Jobs take longer than requests, for which the usual bounds are made.
"""

from typing import Final

DURATION_BOUNDS: Final = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
