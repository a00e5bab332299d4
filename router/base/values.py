"""Values of which some are made for every turn: compared and shown by their fields, and never changed."""

from typing import Any, ClassVar, TypeVar

_V = TypeVar("_V", bound="Value")


class Value:
    """Base of such a value. Its fields are the arguments of its constructor, named in `__match_args__`.

    A class of its own and not a named tuple, since the compiled build reads a field of these in one step and
    keeps numbers as numbers. Type checkers and the compiled build refuse to set one; there, none is copied or
    pickled.
    """

    __slots__ = ()

    __match_args__: ClassVar[tuple[str, ...]] = ()

    def replace(self: _V, **changes: Any) -> _V:
        """The same but for `changes`. Raises `TypeError` for what is no field."""
        return type(self)(**{name: getattr(self, name) for name in self.__match_args__} | changes)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in self.__match_args__]))

    def __repr__(self) -> str:
        fields = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.__match_args__])
        return f"{type(self).__name__}({fields})"
