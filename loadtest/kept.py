"""Figures that are kept from one run to the next, a line each, by what they are of.

Whoever asks says what a figure depends on; what was made of anything else is never answered.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import router
from router.base.errors import HomingError
from router.settings.load import find_policy


class Kept:
    """A file of figures. Each is written as soon as it is known, so that a run may be cut short."""

    def __init__(self, path: Path) -> None:
        """Raises `HomingError` for a file that cannot be read, or is none of these."""
        self._path = path
        self._figures: dict[str, dict[str, float]] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        except OSError as error:
            raise HomingError(f"{path}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self._figures[entry["of"]] = entry["figures"]
            except (ValueError, KeyError, TypeError) as error:
                raise HomingError(
                    f"{path}:{number}: not a line of kept figures; name another file, or delete this one"
                ) from error

    def find(self, of: str) -> dict[str, float] | None:
        """The figures of this, if there are any."""
        return self._figures.get(of)

    def keep(self, of: str, figures: Mapping[str, float]) -> None:
        """Raises `HomingError` where the file cannot be written."""
        self._figures[of] = dict(figures)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"of": of, "figures": figures}) + "\n")
        except OSError as error:
            raise HomingError(f"{self._path}: {error.strerror}") from error


def digest(files: Iterable[Path]) -> str:
    """What stands for the contents of these files, in this order and wherever they lie.

    Raises `HomingError` for one that cannot be read."""
    found = hashlib.sha256()
    for file in files:
        try:
            found.update(file.read_bytes())
        except OSError as error:
            raise HomingError(f"{file}: {error.strerror}") from error
        found.update(b"\0")
    return found.hexdigest()[:16]


def sources(trace: Path, *scripts: Path, policies: Iterable[str]) -> list[Path]:
    """All that figures of replays are made by, in an order that a checkout and an installed package have in
    common. `scripts`: those of whoever asks. Raises `HomingError` for a policy that is not shipped."""
    package = Path(router.__file__).parent
    parts = ("base", "core", "settings", "simulator")
    code = [file for part in parts for file in sorted((package / part).rglob("*.py"))]
    return [trace, *scripts, *code, *(find_policy(name, Path()) for name in policies)]
