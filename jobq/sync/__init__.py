"""The library without `async`, for scripts and notebooks: `with jobq.sync.connect("demo") as queue`."""

from jobq.sync.queue import Queue, connect

__all__ = ["Queue", "connect"]
