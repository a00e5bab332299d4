"""Operates a fleet under steady load, and says what the load noticed.

    python -m loadtest.steady [--streams 200] [--workers N] [--only operations|restart]

`operations`: sessions that stream without pause, while the policy is reloaded, a replica is added, one is
drained, one is killed, and the router is restarted. No turn may fail, but streams that run on the replica
that is killed, and these must end with an error event.

`restart`: the same sessions through one router that nobody disturbs, and through two that get their turns by
lot, one of which is restarted in mid-run. The two must reach 95 % of the one's hit rate.

Exit status 1 where something is not as it must be. Loopback only, ends what it started.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadtest.steady.clients import Load, Shape, hit_rate, judge, kinds
from loadtest.steady.fleet import Fleet, SteadyError, fleet, started
from loadtest.steady.operations import KILLED, operate

LEAST_SHARE: Final = 0.95
"""Of an undisturbed router's hit rate."""

# Slow decoding: many streams are open at once, and few chunks go by.
_SLOW: Final = ("--decode-tps", "10", "--prefill-tps", "12000")

# Prompts that cost more than a step of the engine where they are computed again.
_SESSIONS: Final = Shape(turns=12, system_tokens=1200, user_tokens=200)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.steady", description="What turns notice while a fleet is operated."
    )
    parser.add_argument("--streams", type=int, default=200, metavar="N", help="at once (default %(default)s)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="of the router (default 1)")
    parser.add_argument("--turns", type=int, default=3000, metavar="N", help="of `restart`, each time")
    parser.add_argument(
        "--time-scale",
        type=float,
        default=1.0,
        metavar="X",
        help="simulated seconds a real one; below 1 for a busy machine",
    )
    parser.add_argument("--only", choices=("operations", "restart"))
    arguments = parser.parse_args(argv)
    flags = (*_SLOW, "--time-scale", str(arguments.time_scale))
    good = True
    with tempfile.TemporaryDirectory(prefix="homing-steady-") as folder:
        try:
            for name in ("operations", "one", "two"):
                (Path(folder) / name).mkdir()
            if arguments.only != "restart":
                good &= asyncio.run(_operations(Path(folder) / "operations", arguments, flags))
            if arguments.only != "operations":
                good &= asyncio.run(_restart(Path(folder), arguments, flags))
        except SteadyError as error:
            print(f"{error}", file=sys.stderr)
            return 1
    return 0 if good else 1


async def _operations(folder: Path, arguments: argparse.Namespace, flags: Sequence[str]) -> bool:
    ended = await operate(folder, arguments.streams, arguments.workers, flags, _say)
    verdict = judge(ended, KILLED)
    _say(f"{verdict.turns} turns: {kinds(ended)}")
    _say(f"ended with an error event on the replica that was killed: {verdict.broken_off}")
    _say(f"failed: {len(verdict.failed)}")
    for turn in verdict.failed[:10]:
        _say(f"  {turn}")
    return not verdict.failed


async def _restart(folder: Path, arguments: argparse.Namespace, flags: Sequence[str]) -> bool:
    # A rate of 0 is a run with turns that failed.
    streams, turns = arguments.streams, arguments.turns
    single = await _rate(folder / "one", streams, turns, flags, routers=1)
    pair = await _rate(folder / "two", streams, turns, flags, routers=2)
    share = pair / single if single else 0.0
    _say(f"hit rate: one router {single:.4f}, two of which one was restarted {pair:.4f}: {share:.1%}")
    return share >= LEAST_SHARE


async def _rate(folder: Path, streams: int, turns: int, flags: Sequence[str], *, routers: int) -> float:
    async with fleet(folder, "abcd", *flags) as made:
        made.list("abcd")
        urls: list[str] = []
        load = Load(lambda: urls, streams, _SESSIONS)
        if routers == 1:
            async with started(folder / "0.log", "serve", "-c", str(made.configure("r0"))) as only:
                urls.append(only.url)
                await _until(load, turns)
        else:
            await _through_two(made, folder, load, urls, turns)
    failed = [turn for turn in load.ended if turn.fault]
    _say(f"{routers} router(s): {len(load.ended)} turns, {len(failed)} failed: {kinds(load.ended)}")
    for turn in failed[:10]:
        _say(f"  {turn}")
    return 0.0 if failed else hit_rate(load.ended)


async def _through_two(made: Fleet, folder: Path, load: Load, urls: list[str], turns: int) -> None:
    async with (
        started(folder / "0.log", "serve", "-c", str(made.configure("r0"))) as one,
        started(folder / "1.log", "serve", "-c", str(made.configure("r1"))) as other,
    ):
        urls += [one.url, other.url]
        async with asyncio.TaskGroup() as group:
            running = group.create_task(load.run())
            await load.reached(turns // 2)
            # As behind a balancer: no further turns for it, and once it has none it ends.
            urls.remove(other.url)
            await load.left(other.url)
            await other.stop()
            async with started(folder / "2.log", "serve", "-c", str(folder / "r1.yaml")) as again:
                urls.append(again.url)
                await load.reached(turns - turns // 2)
                load.stop()
                await running


async def _until(load: Load, turns: int) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        await load.reached(turns)
        load.stop()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
