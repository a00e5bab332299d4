"""Finds the files that settings name: beside the file that names them, in the working directory, shipped."""

import os
from pathlib import Path

import router


def shipped_folder() -> Path:
    """Where the policies lie that come with Homing: in a wheel in the package, in a checkout beside it."""
    package = Path(router.__file__).parent
    folder = package / "_policies"
    if not folder.is_dir():
        folder = package.parent / "policies"
    return folder


def shipped_policies() -> dict[str, Path]:
    """The policies that come with Homing, by name."""
    folder = shipped_folder()
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_file(written: str, folder: Path) -> Path | None:
    """Where `written` is: beside the file that names it (`folder`), else in the working directory.

    `None` where it is in neither.
    """
    for path in places_of(written, folder):
        if path.exists():
            return path
    return None


def places_of(written: str, folder: Path) -> tuple[Path, ...]:
    """Where `written` is looked for, in this order; nothing need be there."""
    return (folder / written, Path(written))


def is_bare_name(written: str) -> bool:
    """Whether a policy is meant by its shipped name, `home`, and not as a file, `home.yaml` or `x/home`."""
    return "/" not in written and os.sep not in written and not written.endswith((".yaml", ".yml"))


def shown(path: Path) -> str:
    """The path as a message shows it: from the working directory where it lies below, `a/../b` taken out."""
    absolute = Path(os.path.normpath(path.absolute()))
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)
