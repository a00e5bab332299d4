"""Programs from Debian's packages: those that are installed, else unpacked into a folder of the bench's own.

Unpacked and not installed: no service starts, now or at the next boot, no root is needed, and the folder is
all that there is to delete.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from loadtest.bench.errors import BenchError

_SYSTEM: Final = ("/usr/sbin", "/usr/local/sbin")
_UNPACKED: Final = ("usr/sbin", "usr/bin")
_TIMEOUT_S: Final = 300


class Found(NamedTuple):
    """A program that can be started."""

    path: Path
    environment: Mapping[str, str]


def find(name: str, folder: Path) -> Found | None:
    """The program as installed, else as unpacked in `folder`; `None` if it is in neither."""
    if installed := shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM])):
        return Found(Path(installed), {})
    for place in _UNPACKED:
        path = folder / place / name
        if path.is_file():
            libraries = [str(found) for found in sorted(folder.glob("usr/lib/*-linux-gnu*"))]
            return Found(path, {"LD_LIBRARY_PATH": os.pathsep.join(libraries)})
    return None


def unpack(packages: Sequence[str], folder: Path) -> None:
    """Download the packages with what they need and this machine lacks, and unpack them into `folder`.

    Raises `BenchError` where this is no Debian or its packages cannot be reached.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise BenchError("there is no apt-get here")
    if os.geteuid() == 0:
        # A fresh container has no lists yet. Whether they can be had shows in the download.
        _run(["apt-get", "update", "-qq"], check=False)
    plan = _run(["apt-get", "install", "--simulate", "-qq", "--no-install-recommends", *packages])
    downloads = folder / "packages"
    downloads.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "-qq", *planned(plan.splitlines())], cwd=downloads)
    for package in sorted(downloads.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(folder)])


def planned(plan: Iterable[str]) -> list[str]:
    """The packages that `apt-get install --simulate` names: those asked for, and what they lack here."""
    return [line.split()[1] for line in plan if line.startswith("Inst ")]


def _run(command: Sequence[str], *, cwd: Path | None = None, check: bool = True) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{command[0]}: {error}") from error
    if check and done.returncode != 0:
        raise BenchError(f"{command[0]} {command[1]}: {done.stderr.strip() or done.returncode}")
    return done.stdout
