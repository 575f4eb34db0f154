"""Dataclasses that are completed at their first use are those of the standard library then."""

import copy
import dataclasses
import os
import threading
from typing import Any

import pytest

from jobq.formats.lazy_dataclass import dataclass


def make() -> tuple[type[Any], type[Any]]:
    """Return a class and one that extends it, neither used so far."""

    @dataclass(frozen=True, kw_only=True)
    class Base:
        name: str
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        size: int = 3

    @dataclass(frozen=True, kw_only=True)
    class More(Base):
        extra: str | None = dataclasses.field(default=None, repr=False)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("negative")

    return Base, More


@pytest.mark.parametrize("first", [0, 1])
def test_it_is_the_same_class(first: int) -> None:
    base, more = classes = make()
    assert classes[first](name="x") == classes[first](name="x", tags=["other"])
    value = more(name="a", extra="b")
    assert repr(value).endswith("More(name='a', tags=[], size=3)")
    assert value == copy.copy(value) == dataclasses.replace(value)
    assert value != base(name="a")
    assert hash(value) == hash(more(name="a", extra="b"))
    assert dataclasses.asdict(dataclasses.replace(value, size=4)) == {"name": "a", "tags": [], "size": 4, "extra": "b"}
    assert more(name="a").tags is not more(name="a").tags
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.size = 5
    with pytest.raises(ValueError, match="negative"):
        more(name="a", size=-1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        more(name="a", other=1)
    with pytest.raises(TypeError, match="positional"):
        base("a")


def test_nothing_is_compiled_before() -> None:
    base, more = make()
    assert not hasattr(base, "__dataclass_fields__")
    assert not hasattr(more, "__dataclass_fields__")
    base(name="x")
    assert not hasattr(more, "extra") or "__dataclass_fields__" not in vars(more)


def test_threads_may_make_the_first_value_together() -> None:
    for _ in range(50):
        _, more = make()
        ready = threading.Barrier(4)
        made: list[Any] = []

        def use(more: type[Any] = more, ready: threading.Barrier = ready, made: list[Any] = made) -> None:
            ready.wait()
            made.append(more(name="a", size=2))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert made == [more(name="a", size=2)] * 4


def test_a_fork_from_under_another_thread_may_use_it() -> None:
    from jobq.formats import lazy_dataclass  # noqa: PLC0415 - what this is about

    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lazy_dataclass._lock:  # type: ignore[attr-defined]
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    _, more = make()
    child = os.fork()
    if child == 0:
        os._exit(0 if more(name="a").size == 3 else 1)
    done.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
