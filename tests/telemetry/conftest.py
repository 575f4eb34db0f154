"""The real command line, and servers that stand in for those of others; each says what it stands for."""

from tests.cli.conftest import jobq

__all__ = ["jobq"]
