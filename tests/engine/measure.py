"""What the connector costs and gains on a real engine, in figures of this machine.

    make engine-bench

Prints time to first token of a prompt that is computed, lies here, or is pulled from another replica or from
a gateway; and an engine with the connector beside one without, on prompts that nobody holds. Medians; ratios
with a 95 % interval by bootstrap over pairs.
"""

import argparse
import concurrent.futures
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.real_engines import (
    BLOCK,
    AgentProcess,
    GatewayProcess,
    Plan,
    Replica,
    engines,
    fleet,
    make_model,
    text,
)

LENGTH = 7000
"""Tokens of a prompt."""


def median_ms(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1000:7.0f} ms"


def ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratios of pairs, and its 95 % interval."""
    chance = random.Random(0)
    ratios = [one / other for one, other in zip(over, under, strict=True)]
    drawn = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), drawn[50], drawn[-51]


def show_ratio(title: str, over: Sequence[float], under: Sequence[float]) -> None:
    middle, low, high = ratio(over, under)
    print(f"{title:<44} {middle:6.3f}   [{low:.3f}, {high:.3f}]")


def pulls(folder: Path, rounds: int, apart: bool) -> None:
    """Computed, here, and pulled."""
    chance = random.Random(1)
    computed, here, pulled, pulled_here = [], [], [], []
    with fleet(folder, "ab", apart=apart, connector={"deadline_share": 0.5}) as replicas:
        a, b = replicas["a"], replicas["b"]
        before = b.metrics().loaded_tokens()
        for _ in range(rounds):
            prompt = text(chance, LENGTH)
            computed.append(a.ask(prompt).seconds)
            here.append(a.ask(prompt).seconds)
            pulled.append(b.ask(prompt, sources=["a"]).seconds)
            pulled_here.append(b.ask(prompt).seconds)
        loaded = b.metrics().loaded_tokens() - before
    print(f"prompt of {LENGTH} tokens, {rounds} rounds, {loaded / rounds:.0f} tokens pulled each")
    for name, times in (
        ("computed", computed),
        ("in the replica's own cache", here),
        ("pulled from another replica", pulled),
        ("in its cache after the pull", pulled_here),
    ):
        print(f"  {name:<42} {median_ms(times)}")
    show_ratio("  pulled / computed", pulled, computed)
    show_ratio("  pulled / in its own cache", pulled, pulled_here)


def gateway(folder: Path, rounds: int, apart: bool) -> None:
    """Computed at one replica and pushed, then pulled from the gateway by another."""
    chance = random.Random(3)
    computed, pulled = [], []
    pool = GatewayProcess("pool", folder)
    pool.start()
    try:
        with fleet(folder, "ab", pool=pool, apart=apart, connector={"deadline_share": 0.5}) as replicas:
            a, b = replicas["a"], replicas["b"]
            before = b.metrics().loaded_tokens()
            for _ in range(rounds):
                prompt = text(chance, LENGTH)
                held = pool.blocks()
                computed.append(a.ask(prompt).seconds)
                pool.await_blocks(held + LENGTH // BLOCK)
                pulled.append(b.ask(prompt, sources=["pool"]).seconds)
            loaded = b.metrics().loaded_tokens() - before
    finally:
        pool.stop()
    print(f"gateway: prompt of {LENGTH} tokens, {rounds} rounds, {loaded / rounds:.0f} tokens pulled each")
    print(f"  {'computed':<42} {median_ms(computed)}")
    print(f"  {'pulled from the gateway':<42} {median_ms(pulled)}")
    show_ratio("  pulled / computed", pulled, computed)


def cost(folder: Path, rounds: int, apart: bool) -> None:
    """With the connector and nothing to pull, beside an engine without one."""
    chance = random.Random(2)
    model = make_model(folder.parent / "model")
    arena = Path(tempfile.mkdtemp(prefix="homing-test-", dir="/dev/shm"))
    agent = AgentProcess("with", folder, arena_folder=arena)
    agent.start()
    plans = [
        Plan(name="with", agent=agent, apart=apart),
        Plan(name="without", connector=None, apart=apart),
    ]
    try:
        with engines(plans, folder, model) as replicas:
            first = interleaved(replicas, rounds, lambda replica: replica.ask(text(chance, LENGTH)).seconds)
            many = interleaved(replicas, max(4, rounds // 2), lambda replica: burst(replica, chance))
    finally:
        agent.stop()
        for left in arena.iterdir():
            left.unlink()
        arena.rmdir()
    print(f"nothing to pull, {rounds} pairs in turn: with the connector / without")
    show_ratio(f"  time to first token, {LENGTH} tokens", first["with"], first["without"])
    show_ratio("  8 requests at once, 1,000 + 64 tokens", many["with"], many["without"])


def interleaved(
    replicas: dict[str, Replica], rounds: int, once: Callable[[Replica], float]
) -> dict[str, list[float]]:
    """Both in turn, the first one changing, so that what the machine does else hits both."""
    times: dict[str, list[float]] = {name: [] for name in replicas}
    for number in range(rounds):
        for name in sorted(replicas, reverse=bool(number % 2)):
            times[name].append(once(replicas[name]))
    return times


def burst(replica: Replica, chance: random.Random) -> float:
    """The time of eight answers at once."""
    prompts = [text(chance, 1000) for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return max(answer.seconds for answer in pool.map(lambda one: replica.ask(one, tokens=64), prompts))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["pulls", "gateway", "cost"], nargs="?", help="all, if none is named")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--apart", action="store_true", help="scheduler and worker in processes of their own")
    arguments = parser.parse_args()
    for name, measure in (("pulls", pulls), ("gateway", gateway), ("cost", cost)):
        if arguments.what in (None, name):
            with tempfile.TemporaryDirectory(prefix="homing-") as folder:
                inside = Path(folder) / name
                inside.mkdir()
                measure(inside, arguments.rounds, arguments.apart)


if __name__ == "__main__":
    main()
