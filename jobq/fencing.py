"""The number that a task may show to others (S3); a module of its own because a callback's process imports little."""

from typing import NamedTuple


class FencingNumber(NamedTuple):
    """(epoch, generation, delivery): only rises for one task (S3), so that others can refuse a stale writer.

    A redrive raises the epoch, a requeue the generation, a delivery the last part. Compared as a tuple.
    """

    epoch: int
    generation: int
    delivery: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.generation}.{self.delivery}"
