"""Calls of a Python function as tasks, for `Queue.map`."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Final

from jobq.batches import checked_name
from jobq.errors import ConfigurationError, MalformedTask
from jobq.formats.task_fields import fitting_params
from jobq.task import Task

_LEAST_WIDTH: Final = 6  # of the numbers in ids: more items later are the same ids, and some more


def calls(function: Callable[..., Any], items: Iterable[Any], batch: str, **fields: Any) -> list[Task]:
    """Return a task of a batch for each item; their ids sort as the items stand, and are the same ones each time.

    Args:
        function: one that workers can import.
        items: the arguments of each call: a mapping by name, a tuple by position, anything else as the only one.
        batch: its name.
        fields: of all tasks, such as `timeout`.

    Raises:
        ConfigurationError: it cannot be imported, or the name is none.
        MalformedTask: the function does not take an item, or JSON cannot hold it; says which one it is.
    """
    call, signature = importable(function), inspect.signature(function)
    given = list(items)
    width = max(_LEAST_WIDTH, len(str(len(given))))
    checked_name(batch)
    tasks: list[Task] = []
    for number, item in enumerate(given):
        try:
            kwargs = _arguments(signature, item)
            own = {"params": fitting_params(kwargs), **fields}
            tasks.append(Task.new(call=call, kwargs=kwargs, id=f"{batch}.{number:0{width}d}", batch=batch, **own))
        except MalformedTask as error:
            raise MalformedTask(f"items[{number}]: {error}") from None
    return tasks


def importable(function: Callable[..., Any]) -> str:
    """Return a function as `package.module:function`; raises ConfigurationError for one that workers cannot import."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    found: Any = None
    if isinstance(module, str) and isinstance(name, str) and module != "__main__" and "<" not in name:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part, None)
    if found is not function:
        raise ConfigurationError(
            f"{getattr(function, '__qualname__', function)!r:.80} is nothing that a worker can import: define it at the"
            " top of a module that workers have, not in a script, a notebook or another function"
        )
    return f"{module}:{name}"


def _arguments(signature: inspect.Signature, item: Any) -> dict[str, Any]:
    try:
        if isinstance(item, Mapping):
            bound = signature.bind(**item)
        else:
            bound = signature.bind(*(item if isinstance(item, tuple) else (item,)))
    except TypeError as error:
        raise MalformedTask(f"{error}") from None
    kinds = {signature.parameters[name].kind for name in bound.arguments}
    if kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}:
        raise MalformedTask("arguments come by name, so the function can have no `/` and no `*args`")
    return bound.kwargs | {name: value for name, value in bound.arguments.items() if name not in _open(signature)}


def _open(signature: inspect.Signature) -> set[str]:
    return {name for name, each in signature.parameters.items() if each.kind is inspect.Parameter.VAR_KEYWORD}
