"""Names the interpreter here that runs quickest, for builds that are measured: prints its path, and
on standard error how long each took.

Interpreters of one version differ by a third with how they were built. Those that distributions ship, and
the official images, are built with profile-guided and link-time optimisation; one that a version manager
has compiled often is not. What a router costs is to be measured on the former, where there is one.

Looked at are the interpreter that runs this and each `pythonX.Y` in the folders of `PATH`, as far as they can
make environments and compile extensions. The one that runs this is kept unless another is quicker by more
than a tenth.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

LEAST_VERSION = (3, 11)
GAIN = 0.9
"""What another one may take of the time of the one that runs this."""
ROUNDS = 3

# Prints the least of some timings in nanoseconds: calls, attributes, dictionaries, small objects. Fails where
# the interpreter is too old or lacks what a build needs.
TRIAL = f"""
import ensurepip, sys, sysconfig, venv
from pathlib import Path
from time import process_time_ns
if sys.version_info < {LEAST_VERSION} or sys.implementation.name != "cpython":
    sys.exit("too old")
if not Path(sysconfig.get_path("include"), "Python.h").is_file():
    sys.exit("no Python.h")
class Item:
    def __init__(self, at):
        self.at, self.name = at, b"item-%d" % at
    def key(self):
        return self.at % 97, self.name[:6]
def work():
    seen = {{}}
    for at in range(20_000):
        item = Item(at)
        seen.setdefault(item.key(), []).append(item)
    return sum(len(items) for items in seen.values())
least = None
for _ in range(7):
    begun = process_time_ns()
    work()
    took = process_time_ns() - begun
    least = took if least is None else min(least, took)
print(least)
"""


def candidates(own: str, path: str) -> Iterator[str]:
    """Interpreters to look at, `own` first, each once; `path` as the variable of that name."""
    seen = {os.path.realpath(own)}
    yield own
    for folder in path.split(os.pathsep):
        for found in sorted(Path(folder).glob("python3.*")) if folder else ():
            real = os.path.realpath(found)
            if re.fullmatch(r"python3\.\d+", found.name) and real not in seen and os.access(real, os.X_OK):
                seen.add(real)
                yield str(found)


def trial_ns(interpreter: str) -> int | None:
    """How long it takes for a piece of work, in nanoseconds; `None` where it is of no use to a build."""
    try:
        done = subprocess.run(
            [interpreter, "-I", "-c", TRIAL], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return int(done.stdout)


def quickest(own: str, others: list[str], trial: Callable[[str], int | None]) -> str:
    """`own`, or the one of the `others` that is quicker by enough. Each is tried several times in turn, since
    the machine may be busy in one of them; the least counts."""
    least: dict[str, int] = {}
    for _ in range(ROUNDS if others else 0):
        for one in (own, *others):
            took = trial(one)
            if took is not None:
                least[one] = min(took, least.get(one, took))
    for one, took in least.items():
        print(f"{took / 1e6:6.1f} ms {one}", file=sys.stderr)
    # One that cannot be tried is kept too: whoever builds with it says best what it lacks.
    best = min(others, key=lambda one: least.get(one, sys.maxsize), default=own)
    if own not in least or least.get(best, sys.maxsize) >= least[own] * GAIN:
        return own
    return best


def main() -> None:
    """Print the path."""
    own, *others = candidates(sys.executable, os.environ.get("PATH", ""))
    print(quickest(own, others, trial_ns))


if __name__ == "__main__":
    main()
