"""Which build this is: with the modules of the hot path compiled, or pure Python."""

from importlib.util import find_spec
from typing import Final

from router import __version__

_HOT: Final = "router.dataplane.exchange"
"""Compiled where any module is: they are compiled together."""


def kind_of_build() -> str:
    """`compiled` or `pure`."""
    spec = find_spec(_HOT)
    return "pure" if spec is None or spec.origin is None or spec.origin.endswith(".py") else "compiled"


def version_line() -> str:
    """What is running, for people."""
    return f"homing {__version__} ({kind_of_build()})"
