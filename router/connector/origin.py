"""Notices another package called `router` in an engine's process.

The name is generic. A program's own `router` that comes first on the path is imported in place of ours, or,
where it extends its path over others of its name, mixes its modules with ours.
"""

import sys
from collections.abc import Iterable
from pathlib import Path


def require_own_package(name: str, path: Iterable[str]) -> None:
    """Raises `ImportError` unless the package `name`, found at `path`, and all of its parents come from one
    tree."""
    here = Path(next(iter(path))).resolve()
    parent = name.rpartition(".")[0]
    while parent:
        here = here.parent
        found = [Path(place).resolve() for place in sys.modules[parent].__path__]
        if found != [here]:
            places = ", ".join(map(str, found)) or "nowhere"
            raise ImportError(
                f"the package '{parent}' comes from {places}, and Homing's lies in {here}: another package "
                "of that name is on Python's path. Put Homing first, or take the other one away",
                name=parent,
            )
        parent = parent.rpartition(".")[0]
