"""The command line in a folder of its own."""

from tests.cli.conftest import jobq

__all__ = ["jobq"]
