"""What the commands that start routers have in common: how they begin, what they say, and how they end."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar

from loadtest.bench import debian
from loadtest.bench.contenders import Contender, Places
from loadtest.bench.debian import Found
from loadtest.bench.errors import BenchError

TREE: Final = Path(__file__).parents[2]
RESULTS: Final = TREE / "loadtest" / "results"


class Named(Protocol):
    """What is run with a program of a contender's."""

    @property
    def name(self) -> str: ...

    @property
    def contender(self) -> Contender: ...


One = TypeVar("One", bound=Named)


class Command:
    """One command, by the name that it speaks under."""

    def __init__(self, name: str) -> None:
        self.name = name

    def say(self, line: str) -> None:
        """A line on standard error, as soon as it is said."""
        print(f"{self.name}: {line}", file=sys.stderr, flush=True)

    def run(self, work: Callable[[], int], *, stopped: str) -> int:
        """The exit status: that of `work`, 1 where it cannot be done, and 130 with the word `stopped` where
        it is interrupted, be it by SIGTERM."""
        if not sys.platform.startswith("linux"):
            self.say("this is Linux only")
            return 1
        before = signal.signal(signal.SIGTERM, _interrupted)
        try:
            return work()
        except BenchError as error:
            self.say(str(error))
            return 1
        except KeyboardInterrupt:
            self.say(stopped)
            return 130
        finally:
            signal.signal(signal.SIGTERM, before)

    def found(
        self, wanted: Iterable[One], places: Places, *, unpack: bool
    ) -> tuple[list[tuple[One, Found]], dict[str, str]]:
        """Those whose programs are there, and for each other why it is left out. With `unpack`, packages of
        Debian's are fetched first. Raises `BenchError` where none is there."""
        wanted = list(wanted)
        missing = sorted(
            {
                one.contender.name
                for one in wanted
                if one.contender.debian and one.contender.find(places) is None
            }
        )
        if missing and unpack:
            self.say(f"unpacking {' and '.join(missing)} into {places.unpacked}")
            try:
                debian.unpack(missing, places.unpacked)
            except BenchError as error:
                self.say(f"that failed: {error}")
        present: list[tuple[One, Found]] = []
        absent: dict[str, str] = {}
        for one in wanted:
            program = one.contender.find(places)
            if program is None:
                absent[one.name] = one.contender.missing
                self.say(f"goes on without {one.name}: {one.contender.missing}")
            else:
                present.append((one, program))
        if not present:
            raise BenchError("none of the proxies is there")
        return present, absent


def program_places(arguments: argparse.Namespace) -> Places:
    """Where programs are, by the flags of `add_programs`."""
    return Places(arguments.programs, arguments.programs / "debian")


def add_programs(parser: argparse.ArgumentParser) -> None:
    """The flags that say where other people's programs are."""
    parser.add_argument(
        "--programs",
        type=Path,
        default=TREE / ".venv-bench",
        metavar="DIR",
        help="virtual environment with the other routers (default .venv-bench)",
    )
    parser.add_argument(
        "--unpack",
        action="store_true",
        help="where HAProxy or nginx is missing, unpack Debian's package beside the other routers",
    )


def date() -> str:
    """Now, to the minute."""
    return datetime.now(UTC).isoformat(timespec="minutes")


def _interrupted(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
