"""What `jobq check` finds of both Azure services alike."""

from typing import Final

from jobq.examination import Finding, Verdict

_GRAIN_SECONDS: Final = 2.0  # of dates to the second, and of the way of an answer
_SIGNED_SECONDS: Final = 300.0  # signatures and tokens are refused for more than this and some


def clock(theirs: float, ours: float) -> Finding:
    """Return how far apart the clocks are: leases do not depend on that, signatures do.

    Args:
        theirs: the service's, in seconds since the epoch.
        ours: this machine's.
    """
    ahead = ours - theirs
    if abs(ahead) <= _GRAIN_SECONDS:
        return Finding(what="this machine's clock", found="as the service's")
    found = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the service's"
    if abs(ahead) < _SIGNED_SECONDS:
        return Finding(what="this machine's clock", found=found, verdict=Verdict.NOTED)
    advice = "set it (timedatectl set-ntp true): signatures and tokens of a wrong time are refused"
    return Finding(what="this machine's clock", found=found, verdict=Verdict.DIFFERS, advice=advice)
