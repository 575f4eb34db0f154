"""The former name of `jobq.lease.data_sources`, kept for one version."""

from jobq.lease.data_sources import *  # noqa: F403 - a forward
