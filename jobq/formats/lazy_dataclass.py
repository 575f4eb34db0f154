"""The standard library's `dataclass`, compiled at a class's first use: of thirty, a short command makes values of five.

One costs 0.5 ms, of a command's 50.
"""

import os
from dataclasses import dataclass as completed
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - exported
else:
    _T = TypeVar("_T")
    _pending: Final[dict[type, dict[str, Any]]] = {}
    _lock = RLock()
    _OF_A_CLASS: Final = frozenset({"__dict__", "__weakref__", "__init__"})

    def dataclass(cls: type[_T] | None = None, /, **options: Any) -> Any:
        """Declare a dataclass, which is completed when its first value is made.

        What looks at the class before that (`dataclasses.fields`) does not find it; `slots` make another class, so they
        are not taken.
        """
        if cls is None:
            return lambda decorated: dataclass(decorated, **options)

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - what the first value finds
            with _lock:
                for each in reversed(type(self).__mro__):  # a class has the fields of its bases
                    if each in _pending:
                        _complete(each)
            type(self).__init__(self, *args, **kwargs)

        _pending[cls] = options
        cls.__init__ = __init__
        return cls

    def _complete(cls: type) -> None:
        options = _pending[cls]
        # `__init__` comes from a twin, and last: another thread finds one that waits, or a class that is whole.
        same = {name: value for name, value in vars(cls).items() if name not in _OF_A_CLASS}
        twin = completed(type(cls)(cls.__name__, cls.__bases__, same), **options, eq=False, repr=False)
        completed(cls, **options, init=False)
        cls.__init__ = twin.__init__
        del _pending[cls]

    def _unlock() -> None:
        """Another thread of the parent may have held it."""
        global _lock  # noqa: PLW0603 - the module's own
        _lock = RLock()

    os.register_at_fork(after_in_child=_unlock)
