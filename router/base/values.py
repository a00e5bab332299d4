"""Named tuples in a third of the time, for the few that are made for every turn."""

from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T", bound=tuple[Any, ...])


def maker(cls: type[_T]) -> "partial[_T]":
    """A function that makes a `cls` of the plain tuple of all its fields, in their order. It checks nothing:
    neither how many there are nor, in the type checker, what they are.

    The constructor of a named tuple is a Python function that sorts its arguments, makes that tuple and then
    calls the same.
    """
    return partial(tuple.__new__, cls)
