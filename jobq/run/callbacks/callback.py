"""What a callback is, and which arguments it gets: the task's, by name, and `delivery` if it asks for it."""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Final

from jobq.errors import ConfigurationError, JobqError
from jobq.task import Task

# Takes the task's arguments by name; asynchronous or not.
Callback = Callable[..., Any]
CONTEXT: Final = "delivery"
_BY_NAME: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class ArgumentsRefused(JobqError):
    """The callback cannot take the task's arguments; the message names them and shows no value (A5)."""


class CallbackSignature:
    """How one callback is called.

    Args:
        callback: takes the task's arguments by name.

    Attributes:
        callback: the same.
        name: for messages.
        takes_context: whether it has a parameter named `delivery`.
        is_asynchronous: whether calling it returns an awaitable.

    Raises:
        ConfigurationError: no task could ever be given to it.
    """

    def __init__(self, callback: Callback) -> None:
        if not callable(callback):
            raise ConfigurationError(f"a callback is a function, not {type(callback).__name__}")
        self.callback: Final = callback
        self.name: Final = _name_of(callback)
        if _is(callback, inspect.isgeneratorfunction) or _is(callback, inspect.isasyncgenfunction):
            raise ConfigurationError(f"callback {self.name} is a generator: calling it runs nothing of it; return")
        self.is_asynchronous: Final = _is(callback, inspect.iscoroutinefunction)
        self._parameters: Final = _parameters_of(callback)
        named = [name for name, parameter in self._parameters.items() if parameter.kind in _BY_NAME]
        self.takes_context: Final = CONTEXT in named
        self._open: Final = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in self._parameters.values())
        for name, parameter in self._parameters.items():
            if parameter.kind is Parameter.POSITIONAL_ONLY and parameter.default is Parameter.empty:
                raise ConfigurationError(
                    f"callback {self.name} takes {name!r} by position only, but a task's arguments come by name:"
                    " remove the `/`"
                )

    def arguments(self, task: Task) -> dict[str, Any]:
        """Return the arguments for a task, without `delivery`.

        Raises:
            ArgumentsRefused: names which are missing, and which it does not take.
        """
        arguments = _arguments_of(task)
        if CONTEXT in arguments and self.takes_context:
            raise ArgumentsRefused(f"the task has an argument {CONTEXT!r}, which is what {self.name} gets from jobq")
        faults = []
        if missing := [name for name in self._required() if name not in arguments]:
            faults.append(f"missing {_listed(missing)}")
        if unknown := [name for name in arguments if not self._takes(name)]:
            faults.append(f"unknown {_listed(unknown)}")
        if faults:
            raise ArgumentsRefused(f"{self.name} cannot take this task's arguments: {'; '.join(faults)}")
        return arguments

    def _required(self) -> list[str]:
        return [
            name
            for name, parameter in self._parameters.items()
            if parameter.kind in _BY_NAME and parameter.default is Parameter.empty and name != CONTEXT
        ]

    def _takes(self, name: str) -> bool:
        return self._open or (name in self._parameters and self._parameters[name].kind in _BY_NAME)


def _arguments_of(task: Task) -> dict[str, Any]:
    if task.command is not None:
        return {"command": task.command}
    if task.argv is not None:
        return {"argv": list(task.argv)}
    kwargs = copy.deepcopy(task.kwargs or {})  # what a callback does to them must not travel on with a retry
    return kwargs if task.call is None else {"call": task.call, "kwargs": kwargs}


def _parameters_of(callback: Callback) -> Mapping[str, Parameter]:
    try:
        return inspect.signature(callback).parameters
    except ValueError:  # some builtins have none: calling it shows
        return {"arguments": Parameter("arguments", Parameter.VAR_KEYWORD)}


def _is(callback: Callback, kind: Callable[[object], bool]) -> bool:
    while isinstance(callback, functools.partial):
        callback = callback.func
    return kind(callback) or (not isinstance(callback, type) and kind(getattr(callback, "__call__", None)))  # noqa: B004 - an object whose class defines `async def __call__`


def _name_of(callback: Callback) -> str:
    while isinstance(callback, functools.partial):
        callback = callback.func
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _listed(names: list[str]) -> str:
    return ", ".join(ascii(name) for name in names)
