"""What the connector costs and gains on a real engine, in figures of this machine.

    make engine-bench

Prints time to first token of a prompt that is computed, lies here, or is pulled from another replica or from
a gateway; what int8 loses of real KV; an engine with the connector beside one without, on prompts that nobody
holds; a chat's later turns before prefill and decode replicas, with what decode holds fetched back and
without; and the published experiment, on three engines. Medians; ratios with a 95 % interval by
bootstrap over pairs.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from support.real_cost import ASKS
from support.real_cost import measure as measure_cost
from support.real_engines import BLOCK, AgentProcess, GatewayProcess, Plan, Replica, fleet, text
from support.real_experiment import measure as measure_experiment
from support.real_pairs import DECODE, pairs
from support.real_router import Router

from router.kv.arena import Arena, arena_path
from router.kv.codec import Int8
from router.kv.keys import Namespace
from router.kv.remote import dial

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


def int8(folder: Path, rounds: int, apart: bool) -> None:
    """What int8 loses of a real engine's KV, and what it changes of the answers."""
    import numpy as np

    chance = random.Random(4)
    pool = GatewayProcess("pool", folder)
    pool.start()
    same, away = 0, []
    try:
        with fleet(
            folder,
            "ab",
            pool=pool,
            codec="int8",
            apart=apart,
            connector={"deadline_share": 600, "answer_s": 20},
        ) as replicas:
            a, b = replicas["a"], replicas["b"]
            for _ in range(rounds):
                prompt = text(chance, chance.randrange(1000, 3000))
                held = pool.blocks()
                a.ask(prompt)
                pool.await_blocks(held + len(prompt) // BLOCK)
                # The first token alone: those after one that differs continue another text.
                computed = a.ask(prompt).said
                pulled = b.ask(prompt, sources=["pool"])
                assert pulled.cached > 0, b.metrics().about()
                same += computed[0] == pulled.said[0]
                before, after = (found["token_logprobs"][0] for found in (computed[1], pulled.said[1]))
                if computed[0] == pulled.said[0]:
                    away.append(abs(before - after))
            blocks, space = arena_of(a)
    finally:
        pool.stop()
    codec = Int8(space)
    lost, most = [], []
    for block in blocks:
        coded = codec.encode(memoryview(block))
        assert coded is not None
        back = bytearray(len(block))
        codec.decode(coded, memoryview(back))
        was, is_ = (np.frombuffer(one, np.float32) for one in (block, back))
        lost.append(float(np.sqrt(((was - is_) ** 2).mean() / (was**2).mean())))
        most.append(float(np.abs(was - is_).max() / np.abs(was).max()))
    share = codec.coded_bytes / len(blocks[0])
    print(
        f"int8: {len(blocks)} blocks of {space.kv_dtype}, heads of {space.head_dim}, {share:.0%} of the bytes"
    )
    for title, values, form in (
        ("root mean square of error / of numbers", lost, ".3%"),
        ("largest error / largest number of a block", most, ".3%"),
        ("first token's log-probability is off by", away, ".4f"),
    ):
        print(f"  {title:<42} {statistics.mean(values):{form}}, at most {max(values):{form}}")
    print(f"  {'first token of a pulled prompt the same':<42} {same} of {rounds}")


def arena_of(replica: Replica) -> tuple[list[bytes], Namespace]:
    """The blocks that a replica's agent holds, and what they are."""
    agent = replica.agent
    assert agent is not None
    descriptor = os.open(arena_path(agent.arena_folder, agent.name), os.O_RDWR)
    arena = Arena(descriptor)
    os.close(descriptor)
    size, start = arena.block_bytes, arena._start
    slots = [bytes(arena.buffer[at : at + size]) for at in range(start, len(arena.buffer), arena._stride)]
    return [slot for slot in slots if any(slot[:4096])], asyncio.run(space_of(agent))


async def space_of(agent: AgentProcess) -> Namespace:
    """As the agent tells whoever dials it."""
    remote = await dial(
        "127.0.0.1", agent.port, secret=agent.secret.encode(), name="bench", role="router", max_block=1
    )
    try:
        told = asyncio.Event()
        remote.on_spaces_call = told.set
        if not remote.spaces:
            await told.wait()
        return remote.spaces[0]
    finally:
        remote.close()


@dataclass(frozen=True, kw_only=True)
class TimedPlan(Plan):
    """An engine whose connector writes down what its calls take."""

    def transfer_config(self, folder: Path) -> dict[str, Any]:
        timed = {"kv_connector": "TimedConnector", "kv_connector_module_path": "tools.engine.timed"}
        return super().transfer_config(folder) | timed


def inside(folder: Path, rounds: int, apart: bool) -> None:
    """What the connector's own calls take of a prompt that is computed."""
    chance = random.Random(2)
    account = folder / "times.json"
    made: list[tuple[dict[str, float], float]] = []
    with fleet(
        folder, "a", apart=apart, kind=TimedPlan, environment={"HOMING_TIMES": str(account)}
    ) as replicas:
        replica = replicas["a"]
        for _ in range(rounds):
            worked, spent = replica.processor_s(), spent_s(account)
            replica.ask(text(chance, LENGTH))
            calls = {name: s - spent.get(name, 0.0) for name, s in spent_s(account).items()}
            made.append((calls, replica.processor_s() - worked))
    print(f"nothing to pull, {rounds} prompts of {LENGTH} tokens: processor time in the connector's calls")
    show_ratio(
        "  of all that the engine takes", [sum(one.values()) for one, _ in made], [all for _, all in made]
    )
    every = [(statistics.median(one.get(name, 0.0) for one, _ in made), name) for name in made[0][0]]
    for middle, name in sorted(every, reverse=True)[:5]:
        print(f"    {name:<40} {middle * 1000:9.1f} ms", flush=True)


def spent_s(account: Path) -> dict[str, float]:
    """Processor time of each of the connector's methods until now."""
    if not account.exists():
        return {}
    told: dict[str, list[float]] = json.loads(account.read_text())
    return {name: processor for name, (_calls, _wall, processor) in told.items()}


def pair_turns(folder: Path, rounds: int, apart: bool) -> None:
    """Chats of three turns, each prefilled by a replica that has seen nothing of the chat."""
    if apart:
        print("pairs: the engines' schedulers and workers are together here")
    chance = random.Random(5)
    times: dict[tuple[bool, int], list[float]] = {}
    prefills = ("p0", "p1", "p2")
    with pairs(folder, prefills=prefills, single=False) as (replicas, router):
        for number in range(rounds + 1):
            for back in (True, False) if number % 2 else (False, True):
                seconds = chat(router, chance, f"chat-{number}", back=back)
                # The first chats meet replicas whose speed the router does not know yet.
                for turn, taken in enumerate(seconds, 1) if number else ():
                    times.setdefault((back, turn), []).append(taken)
                replicas[DECODE].await_idle()
    print(f"pairs: chats of {LENGTH} tokens and 200 more in each turn, {rounds} rounds, two in turn")
    for turn in (2, 3):
        with_it, without = times[True, turn], times[False, turn]
        print(f"  {f'turn {turn}, computed again':<42} {median_ms(without)}")
        print(f"  {f'turn {turn}, fetched back from decode':<42} {median_ms(with_it)}")
        show_ratio(f"  turn {turn}, fetched back / computed", with_it, without)


def chat(router: Router, chance: random.Random, session: str, *, back: bool) -> list[float]:
    """The times to first token of a chat's turns. `back`: they are one session, so that what decode holds of
    one the next one fetches back. Else each is a session of its own, of which nobody holds anything."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": text(chance, LENGTH)}]
    taken, used = [], []
    for turn in range(1, 4):
        began = time.perf_counter()
        answer = router.chat(messages, session if back else f"{session}-{turn}", tokens=1)
        taken.append(time.perf_counter() - began)
        kind = answer.headers["x-homing-decision"]
        if kind != ("pair-pull" if back and turn > 1 else "pair"):
            raise SystemExit(f"turn {turn} was a {kind}")
        used.append(answer.headers["x-homing-prefill"])
        router.drain(used[-1], True)
        messages += [
            {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"] or ""},
            {"role": "user", "content": text(chance, 200)},
        ]
        if not back and turn < 3:
            router.end_sessions()
    for name in used:
        router.drain(name, False)
    # Some prefill replica has to take turns, to tell decode what it may let go of.
    router.end_sessions()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "what",
        choices=["pulls", "gateway", "int8", "cost", "inside", "pairs", "experiment"],
        nargs="?",
        help="all but the experiment, if none is named",
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--apart", action="store_true", help="scheduler and worker in processes of their own")
    parser.add_argument(
        "--beside", action="store_true", help="in `cost`, engines without a connector as well"
    )
    parser.add_argument("--only", choices=ASKS, help="of `cost`, one of its two kinds of rounds")
    parser.add_argument("--keep", type=Path, help="a file that rounds of `cost` are added to")
    parser.add_argument("--requests", type=int, default=480, help="of `experiment`, in each arm")
    parser.add_argument("--concurrency", type=int, default=24, help="of `experiment`, clients")
    arguments = parser.parse_args()

    def experiment(folder: Path, rounds: int, apart: bool) -> None:
        measure_experiment(folder, arguments.requests, arguments.concurrency)

    def cost(folder: Path, rounds: int, apart: bool) -> None:
        measure_cost(
            folder,
            rounds,
            apart=apart,
            beside=arguments.beside,
            only=arguments.only,
            keep=arguments.keep,
        )

    for name, measure in (
        ("pulls", pulls),
        ("gateway", gateway),
        ("int8", int8),
        ("cost", cost),
        ("inside", inside),
        ("pairs", pair_turns),
        ("experiment", experiment),
    ):
        # The experiment takes as long as all else together.
        if arguments.what == name or (arguments.what is None and measure is not experiment):
            with tempfile.TemporaryDirectory(prefix="homing-") as folder:
                place = Path(folder) / name
                place.mkdir()
                measure(place, arguments.rounds, arguments.apart)


if __name__ == "__main__":
    main()
