"""Immutable values whose fields are checked, made without a library: its import was half of each command's start."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Final, Self, TypeVar


class FieldError(ValueError):
    """A field cannot have this value.

    Args:
        what: the fault, in plain words.
        where: the field, as a path such as `budgets.retries`; empty for the whole value.
    """

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.what = what
        self.where = where


class Field:
    """One field of a `Checked`; a class has them in the order in which they are written.

    Attributes:
        check: returns what is kept of a given value; raises ValueError, which says what would be right.
        default: what it is where nothing is given; None also says that None may be given.
        make: makes the default anew for each value; None = `default` is it.
        is_shown: whether `repr` has it; what may be a secret is not (A5).
    """

    __slots__ = ("check", "default", "is_optional", "is_shown", "make")

    def __init__(
        self, check: Callable[[Any], Any], default: Any, make: Callable[[], Any] | None, *, is_shown: bool
    ) -> None:
        self.check = check
        self.default = default
        self.make = make
        self.is_shown = is_shown
        self.is_optional = default is None and make is None


def field(
    check: Callable[[Any], Any], default: Any = None, *, make: Callable[[], Any] | None = None, is_shown: bool = True
) -> Any:
    """Declare a field of a `Checked`; see `Field`."""
    return Field(check, default, make, is_shown=is_shown)


class Checked:
    """The base of such values: equal by their fields, copied with `copied`; nothing else changes them.

    Args:
        given: the fields, whatever their names are; or as arguments.

    Raises:
        FieldError: one is unknown, of a wrong type or out of range.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = {}
    _DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    _MADE: ClassVar[Mapping[str, Callable[[], Any]]] = {}

    def __init_subclass__(cls) -> None:
        cls.FIELDS = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        cls._DEFAULTS = {name: each.default for name, each in cls.FIELDS.items()}
        cls._MADE = {name: each.make for name, each in cls.FIELDS.items() if each.make is not None}

    def __init__(self, given: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self.__dict__.update(self._values(more if given is None else {**given, **more}))
        self._check()

    @classmethod
    def _values(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        values, name = dict(cls._DEFAULTS), ""
        try:
            for name, value in given.items():
                known = cls.FIELDS.get(name)
                if known is None:
                    raise ValueError("unknown field")
                if value is not None or not known.is_optional:
                    values[name] = known.check(value)
        except FieldError as error:
            raise FieldError(error.what, f"{name}.{error.where}" if error.where else name) from None
        except ValueError as error:
            raise FieldError(str(error), name) from None
        for name, make in cls._MADE.items():
            if name not in given:
                values[name] = make()
        return values

    def _check(self) -> None:
        """Raise ValueError for fields that do not go together."""

    def copied(self, fields: Mapping[str, Any]) -> Self:
        """Return a copy with other values for some fields, which are not checked."""
        made = self.__class__.__new__(self.__class__)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(fields)
        return made

    def as_dict(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the fields, or some of them, as JSON has them; those that are None are left out."""
        found: dict[str, Any] = {}
        for name in self.__dict__ if names is None else filter(names.__contains__, self.__dict__):
            value = self.__dict__[name]
            if isinstance(value, Checked):
                found[name] = value.as_dict()
            elif value is not None:
                found[name] = list(value) if type(value) is tuple else value
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} does not change; `copied` returns another")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        shown = (f"{name}={self.__dict__[name]!r}" for name, known in self.FIELDS.items() if known.is_shown)
        return f"{type(self).__name__}({', '.join(shown)})"


_T = TypeVar("_T", bound=Checked)


_KINDS: Final[dict[type, str]] = {
    dict: "an object",
    list: "an array",
    tuple: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def nested(cls: type[_T]) -> Callable[[Any], _T]:
    """Return a check for a value of such a class, or for an object with its fields."""

    def check(value: Any) -> _T:
        if type(value) is cls:
            return value
        if not isinstance(value, dict):
            raise ValueError(f"is {kind_of(value)}, not an object")
        return cls(value)

    return check


def integer(least: int, most: int) -> Callable[[Any], int]:
    """Return a check for an integer from `least` to `most`; no other type counts as one."""

    def check(value: Any) -> int:
        if type(value) is not int:
            raise ValueError(f"is {kind_of(value)}, not an integer")
        if not least <= value <= most:
            raise ValueError(f"is out of range: {least} to {most}")
        return value

    return check


def number(value: Any) -> float:
    """Return it as a float; raises ValueError for what is no finite number."""
    if type(value) is not float and type(value) is not int:
        raise ValueError(f"is {kind_of(value)}, not a number")
    try:
        found = float(value)
    except OverflowError:
        raise ValueError("is too large") from None
    if found - found != 0:  # infinite or NaN
        raise ValueError("is not a finite number")
    return found


def text(value: Any) -> str:
    """Return it; raises ValueError for what is no string."""
    if not isinstance(value, str):
        raise ValueError(f"is {kind_of(value)}, not a string")
    return value


def kind_of(value: object) -> str:
    """Return what JSON calls a value, or what Python does."""
    return _KINDS.get(type(value)) or f"of the type {type(value).__name__}"
