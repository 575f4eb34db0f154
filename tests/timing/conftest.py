"""The fixtures of PostgreSQL."""

from tests.postgres.conftest import database, queue

__all__ = ["database", "queue"]
